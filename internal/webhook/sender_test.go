package webhook_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"termkeeper/internal/secret"
	"termkeeper/internal/webhook"
)

func sender(t *testing.T, o webhook.Options) *webhook.Sender {
	t.Helper()
	s := webhook.New(o)
	t.Cleanup(s.Close)
	return s
}

func receiver(t *testing.T, handle http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	return server
}

func call(to string) webhook.Call {
	return webhook.Call{URL: to, ID: "018f", At: time.Now(), Body: []byte(`{"type":"access.ended"}`), Secrets: []secret.Text{webhook.NewSecret()}}
}

// The receiver verifies with the library that the specification gives to receivers.
func TestCallsAreSignedWithEverySecret(t *testing.T) {
	t.Parallel()
	type got struct {
		header http.Header
		body   []byte
		method string
	}
	received := make(chan got, 1)
	server := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		received <- got{r.Header.Clone(), body, r.Method}
		w.WriteHeader(http.StatusNoContent)
	})
	c := call(server.URL)
	c.Secrets = append(c.Secrets, webhook.NewSecret())
	answer, err := sender(t, webhook.Options{AllowPrivate: true}).Send(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, webhook.Answer{Status: 204}, answer)
	g := <-received
	require.Equal(t, http.MethodPost, g.method)
	require.Equal(t, "application/json", g.header.Get("Content-Type"))
	require.Equal(t, c.ID, g.header.Get("webhook-id"))
	require.Equal(t, strconv.FormatInt(c.At.Unix(), 10), g.header.Get("webhook-timestamp"))
	require.Len(t, strings.Fields(g.header.Get("webhook-signature")), 2)
	require.Equal(t, c.Body, g.body)
	for _, s := range c.Secrets {
		require.Regexp(t, `^whsec_[A-Za-z0-9+/]{43}=$`, s.Reveal())
		verifier, err := standardwebhooks.NewWebhook(s.Reveal())
		require.NoError(t, err)
		require.NoError(t, verifier.Verify(g.body, g.header))
		require.Error(t, verifier.Verify(append(g.body, ' '), g.header))
	}
	stranger, err := standardwebhooks.NewWebhook(webhook.NewSecret().Reveal())
	require.NoError(t, err)
	require.Error(t, stranger.Verify(g.body, g.header))
}

// The example of the specification (https://github.com/standard-webhooks/standard-webhooks, its Go library's test).
func TestSignatureOfTheSpecification(t *testing.T) {
	t.Parallel()
	signature := make(chan string, 1)
	server := receiver(t, func(_ http.ResponseWriter, r *http.Request) { signature <- r.Header.Get("webhook-signature") })
	_, err := sender(t, webhook.Options{AllowPrivate: true}).Send(t.Context(), webhook.Call{
		URL: server.URL, ID: "msg_p5jXN8AQM9LWM0D4loKWxJek", At: time.Unix(1614265330, 0), Body: []byte(`{"test": 2432232314}`),
		Secrets: []secret.Text{secret.NewText("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")},
	})
	require.NoError(t, err)
	require.Equal(t, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", <-signature)
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	inside := receiver(t, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	for _, status := range []int{301, 302, 303, 307, 308} {
		server := receiver(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, inside.URL, status) })
		answer, err := sender(t, webhook.Options{AllowPrivate: true}).Send(t.Context(), call(server.URL))
		require.NoError(t, err)
		require.Equal(t, status, answer.Status)
		require.False(t, webhook.OK(answer.Status))
	}
	require.Zero(t, reached.Load())
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{
		"120": 2 * time.Minute, "": 0, "-1": 0, "soon": 0, "1e9": 0, "99999999999999999999": 0,
		time.Now().Add(time.Hour).UTC().Format(http.TimeFormat):  time.Hour,
		time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat): 0,
	} {
		server := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", value)
			w.WriteHeader(http.StatusTooManyRequests)
		})
		answer, err := sender(t, webhook.Options{AllowPrivate: true}).Send(t.Context(), call(server.URL))
		require.NoError(t, err)
		require.InDelta(t, want.Seconds(), answer.RetryAfter.Seconds(), 5, value)
	}
}

// raw answers by hand, for what no server of the library would send.
func raw(t *testing.T, answer func(net.Conn)) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				request := make([]byte, 4096)
				_, _ = conn.Read(request)
				answer(conn)
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

func TestAnswersThatAreNone(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(net.Conn){
		"nothing":            func(net.Conn) {},
		"half a status line": func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 20") },
		"half a head":        func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: te") },
		"no HTTP":            func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0-OpenSSH_9.6\r\n") },
		"a giant head": func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for range 1000 {
				_, _ = io.WriteString(c, "X: "+strings.Repeat("x", 1000)+"\r\n")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := sender(t, webhook.Options{AllowPrivate: true}).Send(t.Context(), call(raw(t, answer)+"/canary?token=canary"))
			require.ErrorIs(t, err, webhook.ErrNoAnswer)
			require.NotContains(t, err.Error(), "canary", "a URL may hold a secret of the receiver's")
		})
	}
	_, err := sender(t, webhook.Options{AllowPrivate: true}).Send(t.Context(), call("http://no-such-host.invalid/"))
	require.ErrorIs(t, err, webhook.ErrNoAnswer)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = sender(t, webhook.Options{AllowPrivate: true}).Send(ctx, call("http://127.0.0.1:1/"))
	require.ErrorIs(t, err, context.Canceled)
}

// The head says whether the call was taken; the rest of the answer is not waited for.
func TestBodiesDoNotMatter(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(net.Conn){
		"cut after the head": func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n") },
		"endless": func(c net.Conn) {
			_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			for err == nil {
				_, err = io.WriteString(c, strings.Repeat("x", 1<<16))
			}
		},
		"hangs": func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx")
			_, _ = c.Read(make([]byte, 1)) // until the caller closes
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, err := sender(t, webhook.Options{AllowPrivate: true}).Send(t.Context(), call(raw(t, answer)))
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, answer.Status)
		})
	}
}

func TestCallThatHangsIsCutOff(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{})
	to := raw(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		close(closed)
	})
	_, err := sender(t, webhook.Options{AllowPrivate: true}).Send(t.Context(), call(to))
	require.ErrorIs(t, err, webhook.ErrNoAnswer)
	require.ErrorContains(t, err, "within 15s")
	<-closed
}

// Without the switch nothing private is called, however it is written; nor is anything called by http.
func TestPrivateAddressesAreRefusedAtTheDial(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	trust := x509.NewCertPool()
	trust.AddCert(server.Certificate())
	s := sender(t, webhook.Options{TLS: &tls.Config{RootCAs: trust, MinVersion: tls.VersionTLS12}})
	for _, to := range []string{
		server.URL, "https://localhost:" + port, "https://2130706433:" + port, "https://0x7f.1:" + port, "https://0177.0.0.1:" + port,
		"https://127.1:" + port, "https://[::ffff:127.0.0.1]:" + port, "https://0.0.0.0:" + port, "https://[::]:" + port, "http://example.com:" + port,
		"https://user@127.0.0.1:" + port,
	} {
		_, err := s.Send(t.Context(), call(to))
		require.ErrorIs(t, err, webhook.ErrNoAnswer, to)
	}
	_, err = s.Send(t.Context(), call("https://localhost:"+port))
	require.ErrorIs(t, err, webhook.ErrTarget)
	require.Zero(t, reached.Load())
	answer, err := sender(t, webhook.Options{AllowPrivate: true, TLS: &tls.Config{RootCAs: trust, MinVersion: tls.VersionTLS12}}).Send(t.Context(), call(server.URL))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.Status)
	require.EqualValues(t, 1, reached.Load(), "it would have been reached")
}

// The environment's proxy would be dialed in the place of the address that was checked.
func TestProxyOfTheEnvironmentIsNotUsed(t *testing.T) {
	var proxied atomic.Int64
	proxy := receiver(t, func(http.ResponseWriter, *http.Request) { proxied.Add(1) })
	server := receiver(t, func(http.ResponseWriter, *http.Request) {})
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL)
	}
	_, err := sender(t, webhook.Options{AllowPrivate: true}).Send(t.Context(), call(server.URL))
	require.NoError(t, err)
	require.Zero(t, proxied.Load())
}

// A name that leads to a public address when it is looked up first, and to a private one then: what counts is the address
// that is dialed.
func TestNameThatLeadsElsewhereTheSecondTime(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	names := &nameServer{answers: func(n int64) net.IP {
		if n == 1 {
			return net.IPv4(192, 0, 2, 1) // of the documentation's range: nobody answers there, and it is refused as well
		}
		return net.IPv4(127, 0, 0, 1)
	}}
	s := sender(t, webhook.Options{Resolver: names.start(t)})
	for range 3 {
		_, err := s.Send(t.Context(), call("https://rebind.example:"+u.Port()+"/"))
		require.ErrorIs(t, err, webhook.ErrTarget)
	}
	require.GreaterOrEqual(t, names.asked.Load(), int64(3), "each call looks the name up again")
	require.Zero(t, reached.Load())

	// The same name with an allowed target: the stand-in works, so it was the guard that refused.
	trust := x509.NewCertPool()
	trust.AddCert(server.Certificate())
	inside := sender(t, webhook.Options{AllowPrivate: true, Resolver: names.start(t), TLS: &tls.Config{RootCAs: trust, ServerName: "example.com", MinVersion: tls.VersionTLS12}})
	answer, err := inside.Send(t.Context(), call("https://rebind.example:"+u.Port()+"/"))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.Status)
}

// nameServer answers every question for an IPv4 address, over UDP on loopback.
type nameServer struct {
	answers func(n int64) net.IP
	asked   atomic.Int64
}

// start returns a resolver that asks it.
func (s *nameServer) start(t *testing.T) *net.Resolver {
	t.Helper()
	conn, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		question := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(question)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(s.answer(question[:n]), from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// answer writes an answer of RFC 1035 to a question with one name.
func (s *nameServer) answer(question []byte) []byte {
	end := 12
	for question[end] != 0 {
		end += 1 + int(question[end])
	}
	end += 5
	isA := binary.BigEndian.Uint16(question[end-4:]) == 1
	answer := append([]byte(nil), question[:2]...)
	answer = append(answer, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0) // a recursive answer, one question, no answer yet
	answer = append(answer, question[12:end]...)
	if isA {
		answer[7] = 1
		answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4) // the name again, an address, not to be kept
		answer = append(answer, s.answers(s.asked.Add(1)).To4()...)
	}
	return answer
}

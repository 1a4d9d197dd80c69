package mail_test

import (
	"context"
	"errors"
	"net"
	netmail "net/mail"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
	"github.com/stretchr/testify/require"

	"termkeeper/internal/mail"
	"termkeeper/internal/simulator"
)

func startSink(t *testing.T) (*simulator.Simulator, *mail.Sender) {
	t.Helper()
	sim, err := simulator.Start(t.Context(), simulator.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Close(context.Background())) })
	sender, err := mail.New(sim.SMTPURL())
	require.NoError(t, err)
	return sim, sender
}

func message() mail.Message {
	return mail.Message{
		To: netmail.Address{Name: "林美, \"Mei\"", Address: "mei@example.com"}, Subject: "您的 Pro 使用权限已到期",
		Text: "您好：\n\n.一行以点开头\n.\n" + strings.Repeat("长", 600) + "\n", HTML: "<p>您好</p>\n",
		MessageID: "0198c0de@termkeeper.example", Headers: map[string]string{"X-Termkeeper-Topic": "access.ended"},
	}
}

// A retry sends the same Message-ID, so the receiver can tell a duplicate.
func TestSendArrivesWhole(t *testing.T) {
	t.Parallel()
	sim, sender := startSink(t)
	m := message()
	require.NoError(t, sender.Send(t.Context(), m))
	m.From = netmail.Address{Address: "billing@example.com"}
	require.NoError(t, sender.Send(t.Context(), m))

	got := sim.Messages()
	require.Len(t, got, 2)
	require.WithinDuration(t, time.Now(), got[0].ReceivedAt, time.Minute)
	got[0].ReceivedAt = time.Time{}
	require.Equal(t, simulator.Message{
		From: "Termkeeper <no-reply@termkeeper.localhost>", To: "mei@example.com", Subject: m.Subject, Text: m.Text, HTML: m.HTML,
		MessageID: "0198c0de@termkeeper.example",
	}, got[0])
	require.Equal(t, "billing@example.com", got[1].From)
	require.Equal(t, got[0].MessageID, got[1].MessageID)
}

func TestSendAcceptsAnAddressBeyondASCII(t *testing.T) {
	t.Parallel()
	sim, sender := startSink(t)
	m := message()
	m.To.Address, m.HTML = "美@例子.中国", ""
	require.NoError(t, sender.Send(t.Context(), m))
	require.Equal(t, "美@例子.中国", sim.Messages()[0].To)
	require.Empty(t, sim.Messages()[0].HTML)
}

func TestSendClassifiesFailures(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		fault simulator.MailFault
		want  error
		kept  int
	}{
		"recipient refused for now":   {simulator.MailFault{At: simulator.AtRcpt, Code: 450}, mail.ErrTemporary, 0},
		"recipient refused for good":  {simulator.MailFault{At: simulator.AtRcpt, Code: 550}, mail.ErrPermanent, 0},
		"content refused for now":     {simulator.MailFault{At: simulator.AtData, Code: 451}, mail.ErrTemporary, 0},
		"content refused for good":    {simulator.MailFault{At: simulator.AtData, Code: 554}, mail.ErrPermanent, 0},
		"sender refused for now":      {simulator.MailFault{At: simulator.AtSender, Code: 451}, mail.ErrTemporary, 0},
		"sender refused for good":     {simulator.MailFault{At: simulator.AtSender, Code: 553}, mail.ErrUnavailable, 0},
		"closing at the recipient":    {simulator.MailFault{At: simulator.AtRcpt, Code: 421}, mail.ErrUnavailable, 0},
		"login wanted at the sender":  {simulator.MailFault{At: simulator.AtRcpt, Code: 530}, mail.ErrUnavailable, 0},
		"greeting refused":            {simulator.MailFault{At: simulator.AtHello, Code: 554, Count: 2}, mail.ErrUnavailable, 0},
		"cut in the content":          {simulator.MailFault{At: simulator.CutInData}, mail.ErrTemporary, 0},
		"cut after the content's dot": {simulator.MailFault{At: simulator.CutAfterData}, mail.ErrAmbiguous, 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sim, sender := startSink(t)
			require.NoError(t, sim.AddMailFault(c.fault))
			m := message()
			if c.fault.At == simulator.CutInData {
				m.Text = strings.Repeat("long enough to be cut\n", 1<<17)
			}
			err := sender.Send(t.Context(), m)
			requireOnly(t, err, c.want)
			require.NotContains(t, err.Error(), "mei@example.com")
			require.Len(t, sim.Messages(), c.kept)

			require.NoError(t, sender.Send(t.Context(), message()), "the fault is used up")
			require.Len(t, sim.Messages(), c.kept+1)
		})
	}
}

// requireOnly checks that an error is of one class and of no other.
func requireOnly(t *testing.T, err, want error) {
	t.Helper()
	for _, class := range []error{mail.ErrPermanent, mail.ErrTemporary, mail.ErrUnavailable, mail.ErrAmbiguous} {
		require.Equal(t, errors.Is(want, class), errors.Is(err, class), "%v against %v", err, class)
	}
}

func TestSendToNobodyListening(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	sender, err := mail.New("smtp://canaryuser:canarypassword@" + address)
	require.NoError(t, err)
	err = sender.Send(t.Context(), message())
	requireOnly(t, err, mail.ErrUnavailable)
	require.NotContains(t, err.Error(), "canary")
}

// A server that accepts and then says nothing must not hold a sender for longer than its context.
func TestSendStopsWithItsContext(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			accepted <- conn
		}
		close(accepted)
	}()
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		for conn := range accepted {
			_ = conn.Close()
		}
	})
	sender, err := mail.New("smtp://" + listener.Addr().String())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan error, 1)
	go func() { sent <- sender.Send(ctx, message()) }()
	conn := <-accepted
	cancel()
	err = <-sent
	require.ErrorIs(t, err, context.Canceled)
	requireOnly(t, err, mail.ErrTemporary)
	require.NoError(t, conn.Close())
}

func TestSendRefusesBeforeDialing(t *testing.T) {
	t.Parallel()
	cases := map[string]func(*mail.Message){
		"line break in the address":          func(m *mail.Message) { m.To.Address = "a@example.com\r\nRCPT TO:<b@example.com>" },
		"line break in the name":             func(m *mail.Message) { m.To.Name = "Mei\r\nBcc: b@example.com" },
		"line feed in the subject":           func(m *mail.Message) { m.Subject = "Hello\nBcc: b@example.com" },
		"carriage return in the subject":     func(m *mail.Message) { m.Subject = "Hello\rBcc: b@example.com" },
		"U+0000 in the subject":              func(m *mail.Message) { m.Subject = "Hello\x00" },
		"U+0085 in the subject":              func(m *mail.Message) { m.Subject = "Hello\u0085" },
		"line break in the sender's name":    func(m *mail.Message) { m.From = netmail.Address{Name: "A\nB", Address: "a@example.com"} },
		"line break in the sender's address": func(m *mail.Message) { m.From.Address = "a@example.com\n" },
		"line break in a header":             func(m *mail.Message) { m.Headers = map[string]string{"X-A": "1\r\nBcc: b@example.com"} },
		"line break in a header's name":      func(m *mail.Message) { m.Headers = map[string]string{"X-A: 1\r\nBcc": "b@example.com"} },
		"a header of ours":                   func(m *mail.Message) { m.Headers = map[string]string{"bcc": "b@example.com"} },
		"line break in the id":               func(m *mail.Message) { m.MessageID = "a@b\r\nBcc: b@example.com" },
		"no id":                              func(m *mail.Message) { m.MessageID = "" },
		"an id in brackets":                  func(m *mail.Message) { m.MessageID = "<a@b>" },
		"no recipient":                       func(m *mail.Message) { m.To.Address = "" },
		"two recipients":                     func(m *mail.Message) { m.To.Address = "a@example.com, b@example.com" },
		"a recipient with a name inside":     func(m *mail.Message) { m.To.Address = "Mei <mei@example.com>" },
		"no domain":                          func(m *mail.Message) { m.To.Address = "mei" },
		"an endless address":                 func(m *mail.Message) { m.To.Address = strings.Repeat("m", 250) + "@example.com" },
		"no text":                            func(m *mail.Message) { m.Text = " \n" },
		"a text that is not UTF-8":           func(m *mail.Message) { m.Text = "\xff" },
	}
	sim, sender := startSink(t)
	// Whoever reached the server would be refused for now, and not for good.
	require.NoError(t, sim.AddMailFault(simulator.MailFault{At: simulator.AtHello, Code: 450, Count: 1000}))
	for name, change := range cases {
		m := message()
		change(&m)
		requireOnly(t, sender.Send(t.Context(), m), mail.ErrPermanent)
		require.Empty(t, sim.Messages(), name)
	}
}

func TestNewReadsTheURL(t *testing.T) {
	t.Parallel()
	for _, good := range []string{
		"smtp://mail.example.com", "smtps://user:p%40ss@mail.example.com", "smtp://[::1]:2525/", "smtp://localhost:25",
		"smtp://mail.example.com?from=Billing+%3Cbilling%40example.com%3E", "smtp://127.0.0.1:2525?from=a@b.example",
	} {
		_, err := mail.New(good)
		require.NoError(t, err, good)
	}
	for _, bad := range []string{
		"", "mail.example.com:25", "http://canary:canary@mail.example.com", "smtp://", "smtp://canary:canary@:25", "smtp://mail.example.com:0",
		"smtp://mail.example.com:99999", "smtp://mail.example.com/canary", "smtp://mail.example.com#canary", "smtp://mail.example.com?canary=1",
		"smtp://mail.example.com?from=canary", "smtp://mail.example.com?from=%0acanary@example.com", "smtp://canary:%zz@mail.example.com",
		"smtp://canary:c anary@mail.example.com", "smtp://mail.example.com?from=%zzcanary", "smtp://canary:canary\x7f@mail.example.com",
	} {
		_, err := mail.New(bad)
		require.Error(t, err, bad)
		require.NotContains(t, err.Error(), "canary")
	}
}

// loginServer wants a login and, like a bad server, repeats it when it is wrong.
type loginServer struct{ right bool }

func (s loginServer) NewSession(*smtp.Conn) (smtp.Session, error) {
	return &loginSession{right: s.right}, nil
}

type loginSession struct {
	smtp.Session
	right bool
}

func (s *loginSession) Logout() error            { return nil }
func (s *loginSession) Reset()                   {}
func (s *loginSession) AuthMechanisms() []string { return []string{sasl.Plain} }
func (s *loginSession) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, username, password string) error {
		if s.right && username == "canaryuser" && password == "canarypassword" {
			return nil
		}
		return &smtp.SMTPError{Code: 535, Message: "wrong: " + username + " " + password}
	}), nil
}

func (s *loginSession) Mail(string, *smtp.MailOptions) error {
	return &smtp.SMTPError{Code: 452, Message: "reached"}
}

func TestSendLogsIn(t *testing.T) {
	t.Parallel()
	for _, right := range []bool{true, false} {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		server := smtp.NewServer(loginServer{right: right})
		server.AllowInsecureAuth = true
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()

		sender, err := mail.New("smtp://canaryuser:canarypassword@" + listener.Addr().String())
		require.NoError(t, err)
		err = sender.Send(t.Context(), message())
		require.Error(t, err)
		require.NotContains(t, err.Error(), "canary")
		if right {
			requireOnly(t, err, mail.ErrTemporary) // the login passed: it is the sender that was refused
			require.Contains(t, err.Error(), "reached")
		} else {
			requireOnly(t, err, mail.ErrUnavailable)
		}
		require.NoError(t, server.Close())
		require.NoError(t, <-served)
	}
}

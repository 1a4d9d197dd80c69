package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"termkeeper/internal/access"
	"termkeeper/internal/intake"
	"termkeeper/internal/secret"
	"termkeeper/internal/settlement"
	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
	"termkeeper/internal/telemetry"
	"termkeeper/internal/temporalclient"
	"termkeeper/workflows"
)

const (
	secretNew = "whsec_test_aaaaaaaaaaaaaaaaaaaaaa"
	secretOld = "whsec_test_bbbbbbbbbbbbbbbbbbbbbb"
)

// system is the API on a real database, with a key for each role. Temporal cannot be reached.
type system struct {
	pool    *pgxpool.Pool // for seeding and looking, never through the proxy
	store   *store.Store
	server  *Server
	orders  *settlement.Settler // without a provider, unless a test gives it one
	metrics *telemetry.Metrics
	logs    *observer.ObservedLogs
	keys    map[role]string
}

func newSystem(t *testing.T) *system {
	t.Helper()
	pool := storetest.New(t)
	return newSystemOn(t, pool, pool)
}

// newSystemOn lets the API reach the database by its own pool, for instance through a proxy.
func newSystemOn(t *testing.T, pool, served *pgxpool.Pool) *system {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	temporal, err := temporalclient.Lazy(temporalclient.Options{Environ: []string{"TEMPORAL_ADDRESS=127.0.0.1:1"}, Identity: "test", Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(temporal.Close)
	s := assemble(t, pool, served, temporal, zap.New(core))
	s.logs = logs
	return s
}

// assemble puts the API together, with a key for each role.
func assemble(t *testing.T, pool, served *pgxpool.Pool, temporal temporalclient.Client, log *zap.Logger) *system {
	t.Helper()
	s := &system{pool: pool, store: store.New(pool), metrics: telemetry.NewMetrics(), keys: map[role]string{}}
	for r := roleAccess; r <= roleAdmin; r++ {
		key := secret.NewAPIKey()
		_, err := s.store.CreateAPIKey(t.Context(), store.APIKey{Name: "test-" + roleNames[r], Role: roleNames[r], Hash: key.Hash[:], Prefix: key.Prefix})
		require.NoError(t, err)
		s.keys[r] = key.Text.Reveal()
	}
	reader := access.NewReader(store.New(served))
	t.Cleanup(reader.Close)
	in := intake.New(store.New(served), intake.Settings{Owner: "test", Leeway: time.Hour}, log)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		_ = in.Drain(ctx) // a test that took the database away has nobody to give leases back to
	})
	s.orders = &settlement.Settler{Store: store.New(served), Owner: "test", Log: log}
	s.server = New(Parts{
		Access: reader, Keys: store.New(served), Store: store.New(served), Webhooks: Webhooks{
			Intake: in, Secrets: []string{secretNew, secretOld}, Outgoing: testEndpoints(t),
			Provider: Provider{Orders: s.orders},
		},
		Schedules: temporalclient.NewSchedules(temporal, workflows.JobIDs()), Telemetry: Telemetry{Log: log, Metrics: s.metrics},
	})
	s.server.http.Handler = holdToDocument(t, s.server.http.Handler)
	return s
}

func (s *system) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	_, err := s.pool.Exec(t.Context(), query, args...)
	require.NoError(t, err)
}

// answer is what the API answered.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) field(t *testing.T, name string) any {
	t.Helper()
	var all map[string]any
	require.NoError(t, json.Unmarshal(a.body, &all), string(a.body))
	require.Contains(t, all, name, string(a.body))
	return all[name]
}

// requireProblem demands a problem of RFC 9457 with this status and code, and returns the pointers of its errors.
func (a answer) requireProblem(t *testing.T, status int, code string) []string {
	t.Helper()
	require.Equal(t, status, a.status, string(a.body))
	require.Equal(t, "application/problem+json", a.header.Get("Content-Type"))
	var p problemError
	decoder := json.NewDecoder(bytes.NewReader(a.body))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&p))
	require.Equal(t, code, p.Code, p.Detail)
	require.Equal(t, "urn:termkeeper:problem:"+code, p.Type)
	require.Equal(t, status, p.Status)
	require.NotEmpty(t, p.Title)
	require.NotEmpty(t, p.Detail)
	require.NotEmpty(t, p.RequestID)
	require.Equal(t, p.RequestID, a.header.Get("X-Request-Id"))
	var pointers []string
	for _, e := range p.Errors {
		require.NotEmpty(t, e.Detail)
		pointers = append(pointers, e.Pointer)
	}
	return pointers
}

// do sends one request with the key of the role; public sends none.
func (s *system) do(t *testing.T, as role, method, path, body string) answer {
	t.Helper()
	return s.ask(func() *http.Request {
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		if as != public {
			r.Header.Set("Authorization", "Bearer "+s.keys[as])
		}
		return r
	})
}

// ask sends what build makes. On a busy machine an answer may take longer than the API allows itself; then it is asked
// again, as a client would.
func (s *system) ask(build func() *http.Request) answer {
	var a answer
	for range 20 {
		if a = s.send(build()); a.status != http.StatusServiceUnavailable || !bytes.Contains(a.body, []byte(`"database_unavailable"`)) {
			break
		}
	}
	return a
}

func (s *system) send(r *http.Request) answer {
	recorder := httptest.NewRecorder()
	s.server.http.Handler.ServeHTTP(recorder, r)
	return answer{recorder.Code, recorder.Header(), recorder.Body.Bytes()}
}

// must is do for a request that has to end with this status; it returns the answer's fields.
func (s *system) must(t *testing.T, status int, method, path, body string) map[string]any {
	t.Helper()
	a := s.do(t, roleAdmin, method, path, body)
	require.Equal(t, status, a.status, "%s %s: %s", method, path, a.body)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(a.body, &fields))
	return fields
}

// proxy stands between the API and PostgreSQL and can fall silent, as a network does.
type proxy struct {
	listener net.Listener
	target   string

	mu     sync.Mutex
	silent bool
	conns  []net.Conn
}

// throughProxy is a pool on the same database that goes through a proxy.
func throughProxy(t *testing.T, databaseURL string) (*pgxpool.Pool, *proxy) {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: listener, target: u.Host}
	go p.serve()
	t.Cleanup(p.cut)
	u.Host = listener.Addr().String()
	pool, err := store.OpenLazy(t.Context(), u.String(), store.PoolOptions{Name: "test", MaxConns: 8, StatementTimeout: 5 * time.Second, LockTimeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool, p
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target) //nolint:noctx // ends with the test's server
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		go p.pipe(client, server)
		go p.pipe(server, client)
	}
}

func (p *proxy) pipe(from, to net.Conn) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		silent := p.silent
		p.mu.Unlock()
		if err != nil {
			_ = to.Close()
			return
		}
		if silent {
			continue // what is sent is lost, and nobody is told
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			_ = from.Close()
			return
		}
	}
}

// hush loses everything from now on without closing anything.
func (p *proxy) hush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
}

// cut closes everything; new connections are refused.
func (p *proxy) cut() {
	_ = p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
}

package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// readyDeadline bounds the question whether the process is ready. A load balancer waits no longer either.
const readyDeadline = 2 * time.Second

// OpsServer answers /healthz/live, /healthz/ready, /metrics and /log/level on an address of its own.
type OpsServer struct {
	listener net.Listener
	server   *http.Server
}

// OpenOps listens on addr; port 0 takes a free one. ready returns why the process can not serve now, nil when it can;
// what it returns is shown to whoever asks, so it names no secret.
func OpenOps(addr string, m *Metrics, level zap.AtomicLevel, ready func(context.Context) error) (*OpsServer, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listening for health and metrics on %s: %w", addr, err)
	}
	server := &http.Server{
		Handler:           OpsHandler(m, level, ready),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
	return &OpsServer{listener: listener, server: server}, nil
}

// Addr is the address that is really listened on.
func (o *OpsServer) Addr() string { return o.listener.Addr().String() }

// Serve answers until Shutdown; then it returns nil.
func (o *OpsServer) Serve() error {
	if err := o.server.Serve(o.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving health and metrics: %w", err)
	}
	return nil
}

// Shutdown lets the running answers finish, until ctx ends.
func (o *OpsServer) Shutdown(ctx context.Context) error { return o.server.Shutdown(ctx) }

// OpsHandler is what the ops server answers.
func OpsHandler(m *Metrics, level zap.AtomicLevel, ready func(context.Context) error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz/live", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "live") })
	mux.HandleFunc("GET /healthz/ready", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyDeadline)
		defer cancel()
		if err := ready(ctx); err != nil {
			say(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		say(w, http.StatusOK, "ready")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.Handle("GET /log/level", level)
	mux.Handle("PUT /log/level", level)
	return mux
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, text) // a caller that went away needs no answer
}

// Package api is the HTTP API: access checks, users, plans, subscriptions, webhooks and jobs. Access checks and webhooks
// need PostgreSQL only.
package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"termkeeper/internal/store"
	"termkeeper/internal/telemetry"
	"termkeeper/internal/temporalclient"
)

// Parts is what the API is made of.
type Parts struct {
	Access    AccessReader
	Keys      *store.Store // on the pool of the access path: a key is looked up for each access check
	Store     *store.Store // for all the rest
	Webhooks  Webhooks
	Schedules *temporalclient.Schedules
	Telemetry Telemetry
}

// Telemetry is where the API tells what it does.
type Telemetry struct {
	Log     *zap.Logger
	Metrics *telemetry.Metrics
}

// Server is the HTTP API on one address.
type Server struct {
	echo     *echo.Echo
	http     *http.Server
	open     atomic.Int64 // connections
	stopping atomic.Bool
}

// New puts the API together. It opens nothing.
func New(p Parts) *Server {
	s := &Server{echo: echo.New()}
	p.Telemetry.Metrics.WatchSecrets(p.Webhooks.fingerprints())
	s.echo.HTTPErrorHandler = answerProblem(p.Telemetry.Log)
	// All that is done around every answer, also around one of no route, is put together once; echo would do it for each request.
	every := around(func(c echo.Context) error { return c.Handler()(c) }, nameRequests, logRequests(p.Telemetry.Log), survivePanics(p.Telemetry.Log),
		hangUp(&s.stopping), secureAnswers(), limitBodies)
	s.echo.Use(func(echo.HandlerFunc) echo.HandlerFunc { return every })
	keys := &keyring{store: p.Keys, guesses: newGuesses(), known: map[[32]byte]knownKey{}}
	for _, r := range routes(p) {
		middleware := []echo.MiddlewareFunc{wholeSegments, within(r.deadline)}
		if r.deadline >= farewell { // a shorter one ends while connections are still taken
			middleware = append(middleware, hangUpLate(&s.stopping))
		}
		if r.role != public {
			middleware = append(middleware, keys.requires(r.role))
		}
		if r.takesKey() {
			middleware = append(middleware, idempotency{p.Store, p.Telemetry.Log}.once(r.deadline))
		}
		s.echo.Add(r.method, r.path, around(r.handler, middleware...))
	}
	s.http = &http.Server{
		Handler: s.echo,
		// A client that sends its head or its body byte by byte is cut off; answers are small.
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 90 * time.Second,
		MaxHeaderBytes: 32 << 10,
		ErrorLog:       zap.NewStdLog(p.Telemetry.Log),
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				s.open.Add(1)
			case http.StateClosed, http.StateHijacked:
				s.open.Add(-1)
			case http.StateActive, http.StateIdle:
			}
		},
	}
	return s
}

// around puts middleware around a handler, the first outermost.
func around(handler echo.HandlerFunc, middleware ...echo.MiddlewareFunc) echo.HandlerFunc {
	for _, m := range slices.Backward(middleware) {
		handler = m(handler)
	}
	return handler
}

// Handler is the API without a listener, for tests and for serving it beside others.
func (s *Server) Handler() http.Handler { return s.echo }

// Serve answers on the listener until Stop; then it returns nil.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the API: %w", err)
	}
	return nil
}

// farewell is how long connections are still taken while the server stops. Answers say meanwhile that their connection
// closes, so that no client sends a request into a connection that is about to close.
const farewell = time.Second

// Stop ends the server in order: answers begin to close their connections, then no new ones are taken, then what runs
// finishes, until ctx ends.
func (s *Server) Stop(ctx context.Context) error {
	s.stopping.Store(true)
	if s.open.Load() > 0 {
		wait, cancel := context.WithTimeout(ctx, farewell)
		<-wait.Done()
		cancel()
	}
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("letting requests finish: %w", err), s.http.Close())
	}
	return nil
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"termkeeper/internal/secret"
	"termkeeper/internal/store"
)

const (
	accessUsers = 100_000
	// firstUser makes all ids equally long, so that a request is changed in place.
	firstUser = 1_000_000
	// accessLasts is one measurement.
	accessLasts = 4 * time.Second
)

// fillAccess: one subscription each, one in ten has ended.
const fillAccess = `INSERT INTO subscriptions (user_id, plan_key, status, started_at, expires_at)
SELECT ($1::int + n)::text, 'plan_' || n % 3, 'active', now() - interval '30 days',
	CASE WHEN n % 10 = 0 THEN now() - interval '1 hour' ELSE now() + interval '1 day' * (1 + n % 300) END
FROM generate_series(0, $2::int - 1) AS n`

const fillPlans = `INSERT INTO plans (key, name, features, stripe_price_ids)
SELECT 'plan_' || n, 'Plan ' || n, ARRAY['text', 'images', 'video'], ARRAY['price_' || n] FROM generate_series(0, 2) AS n`

// measureAccess compares the API, over real connections and with a key, with pgbench sending the statement that
// store.Holdings sends, and with a server of the same kind that only answers.
func measureAccess(ctx context.Context, s *stack, rounds int) (rows []row, err error) {
	const database = "access"
	key := secret.NewAPIKey()
	err = s.prepare(ctx, database, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, fillPlans); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, fillAccess, firstUser, accessUsers)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.drop(context.WithoutCancel(ctx), database)) }()
	script, err := s.holdingsScript(ctx, database, key)
	if err != nil {
		return nil, err
	}
	api, address, err := s.api(ctx, database)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, api.stop()) }()
	constant, fields, err := startProcess(ctx, "serving", environment(), os.Args[0], serveConstant)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, constant.stop()) }()
	constantAddress, _ := fields["http_addr"].(string)

	var few, many, fewConstant, manyConstant pair
	for i := range rounds {
		s.say("access, round %d", i+1)
		limit, err := s.pgbench(ctx, database, script, nil, accessLasts)
		if err != nil {
			return nil, err
		}
		s.say("  pgbench: %.0f/s; CPU µs each: %.0f", limit.perSecond, 1e6/limit.perCPUSecond)
		for _, load := range []struct {
			inFlight          int
			pgbench, constant *pair
		}{{16, &few, &fewConstant}, {64, &many, &manyConstant}} {
			ours, err := s.accessLoad(ctx, api, address, key, load.inFlight)
			if err != nil {
				return nil, err
			}
			constantOnly, err := s.accessLoad(ctx, constant, constantAddress, key, load.inFlight)
			if err != nil {
				return nil, err
			}
			load.pgbench.add(ours, limit)
			load.constant.add(ours, constantOnly.speed())
		}
	}
	return slices.Concat(
		few.rows("access check, strict, 16 in flight, against pgbench", 0.60),
		many.rows("access check, strict, 64 in flight, against pgbench", 0.60),
		fewConstant.rows("access check, strict, 16 in flight, against a constant answer", 0),
		manyConstant.rows("access check, strict, 64 in flight, against a constant answer", 0),
	), nil
}

// statements remembers the SQL that a pool sends.
type statements struct{ sent []string }

// TraceQueryStart keeps the text.
func (t *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	t.sent = append(t.sent, data.SQL)
	return ctx
}

// TraceQueryEnd has nothing to do.
func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// holdingsScript is the statement of store.Holdings as the store sends it, for one user at random. It also makes the key.
func (s *stack) holdingsScript(ctx context.Context, database string, key secret.APIKey) (string, error) {
	config, err := pgxpool.ParseConfig(s.postgres.URL(database))
	if err != nil {
		return "", err
	}
	trace := &statements{}
	config.ConnConfig.Tracer = trace
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return "", err
	}
	defer pool.Close()
	keeper := store.New(pool)
	if _, err := keeper.CreateAPIKey(ctx, store.APIKey{Name: "bench", Role: "access", Hash: key.Hash[:], Prefix: key.Prefix}); err != nil {
		return "", err
	}
	trace.sent = nil
	holdings, _, err := keeper.Holdings(ctx, []string{strconv.Itoa(firstUser)})
	if err != nil {
		return "", err
	}
	if len(holdings) != 1 || len(trace.sent) != 1 || strings.Count(trace.sent[0], "$1::text[]") != 1 {
		return "", fmt.Errorf("store.Holdings has changed, and the script of pgbench must follow: %q", trace.sent)
	}
	statement := strings.Replace(trace.sent[0], "$1::text[]", "ARRAY[:user]::text[]", 1)
	return fmt.Sprintf("\\set user random(%d, %d)\n%s;\n", firstUser, firstUser+accessUsers-1, statement), nil
}

func (s *stack) accessLoad(ctx context.Context, server *process, address string, key secret.APIKey, inFlight int) (loaded, error) {
	warm := time.Now().Add(300 * time.Millisecond)
	if _, err := load(ctx, address, accessSources(key, inFlight, warm)); err != nil {
		return loaded{}, err
	}
	before, err := s.cpuOf(server)
	if err != nil {
		return loaded{}, err
	}
	result, err := load(ctx, address, accessSources(key, inFlight, time.Now().Add(accessLasts)))
	if err != nil {
		return loaded{}, err
	}
	after, err := s.cpuOf(server)
	result.cpu = after.since(before)
	s.say("  %s, %d in flight: %.0f/s, %d refused; %s", filepath.Base(server.cmd.Path), inFlight, result.speed().perSecond, result.refused, result.cpu.each(result.requests))
	return result, err
}

// accessSources ask for users at random until an instant. Each connection has a request of its own and changes the
// digits of the user in it.
func accessSources(key secret.APIKey, inFlight int, until time.Time) []source {
	sources := make([]source, inFlight)
	for i := range sources {
		const before = "GET /v1/access?user_id="
		request := []byte(before + strconv.Itoa(firstUser) + "&feature=images HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer " +
			key.Text.Reveal() + "\r\n\r\n")
		sources[i] = func() []byte {
			if time.Now().After(until) {
				return nil
			}
			strconv.AppendInt(request[len(before):len(before)], int64(firstUser+rand.IntN(accessUsers)), 10) //nolint:gosec // G404: no secret.
			return request
		}
	}
	return sources
}

// constantServer is echo with one route that returns a constant as long as an access answer, until ctx ends.
func constantServer(ctx context.Context, stderr io.Writer) error {
	server := echo.New()
	body := []byte(`{"allowed":true,"reason":"active","user_id":"1000000","feature":"images","plan":"plan_0",` +
		`"subscription_id":"01980000-0000-7000-8000-000000000000","status":"active","expires_at":"2026-12-30T00:00:00Z",` +
		`"grace_period_ends_at":null,"access_until":"2026-12-30T00:00:00Z","next_change_at":"2026-12-30T00:00:00Z",` +
		`"decided_at":"2026-11-30T12:00:00Z"}`)
	server.GET("/v1/access", func(c echo.Context) error { return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, body) })
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := &http.Server{Handler: server, ReadHeaderTimeout: 5 * time.Second}
	if err := json.NewEncoder(stderr).Encode(map[string]string{"msg": "serving", "http_addr": listener.Addr().String()}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = served.Close() }) // its clients are gone by then
	defer stop()
	if err := served.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"termkeeper/internal/secret"
)

const (
	// revocations are measured in one round, one after the other.
	revocations = 200
	// revocationPause lets the load find what the last one forgot.
	revocationPause = 20 * time.Millisecond

	revocationTarget99 = 100 * time.Millisecond
	revocationPromise  = time.Second
)

const cachedMode = "TERMKEEPER_ACCESS_MODE=cached"

// measureCached compares the API that answers from memory, over real connections and with a key, with a server of the same
// kind that only answers. Then it revokes under full load.
func measureCached(ctx context.Context, s *stack, rounds int) (rows []row, err error) {
	const database = "cached"
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
	if _, err := s.holdingsScript(ctx, database, key); err != nil { // makes the key
		return nil, err
	}
	api, address, err := s.api(ctx, database, cachedMode)
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
	s.say("cached access: asking for everybody once")
	if _, err := load(ctx, address, everybodyOnce(key)); err != nil {
		return nil, err
	}

	var few, many pair
	var seen row
	var longest time.Duration
	for i := range rounds {
		s.say("cached access, round %d", i+1)
		for _, load := range []struct {
			inFlight int
			constant *pair
		}{{16, &few}, {64, &many}} {
			ours, err := s.accessLoad(ctx, api, address, key, load.inFlight)
			if err != nil {
				return nil, err
			}
			limit, err := s.accessLoad(ctx, constant, constantAddress, key, load.inFlight)
			if err != nil {
				return nil, err
			}
			load.constant.add(ours, limit.speed())
		}
		delays, err := s.revoke(ctx, database, address, key)
		if err != nil {
			return nil, err
		}
		took := percentiles(delays)
		longest = max(longest, delays[len(delays)-1])
		s.say("  a revocation is seen after p50 %s, p99 %s, at most %s", took.p50, took.p99, delays[len(delays)-1])
		seen.latency = append(seen.latency, took)
	}
	seen.path = fmt.Sprintf("from a revocation to the first no, 64 in flight, at most %d ms", longest.Milliseconds())
	seen.target = "p99 ≤ 100 ms, all ≤ 1 s"
	seen.met = longest <= revocationPromise && !slices.ContainsFunc(seen.latency, func(l latencies) bool { return l.p99 > revocationTarget99 })
	return slices.Concat(
		few.rows("access check, cached, 16 in flight, against a constant answer", 0.80),
		many.rows("access check, cached, 64 in flight, against a constant answer", 0.80),
		[]row{seen},
	), nil
}

// everybodyOnce asks for each user once.
func everybodyOnce(key secret.APIKey) []source {
	var asked atomic.Int64
	sources := make([]source, 64)
	for i := range sources {
		sources[i] = func() []byte {
			n := asked.Add(1)
			if n > accessUsers {
				return nil
			}
			return accessRequest(key, firstUser+int(n)-1)
		}
	}
	return sources
}

func accessRequest(key secret.APIKey, user int) []byte {
	return []byte("GET /v1/access?user_id=" + strconv.Itoa(user) + "&feature=images HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer " + key.Text.Reveal() + "\r\n\r\n")
}

// revoke holds subscriptions of users at random, one after the other, while checks come in as fast as they are answered.
// A delay is from the commit, as its writer sees it, to the first answer that says no.
func (s *stack) revoke(ctx context.Context, database, address string, key secret.APIKey) (delays []time.Duration, err error) {
	busy, stop := context.WithCancel(ctx)
	defer stop()
	loaded := make(chan error, 1)
	go func() {
		sources := accessSources(key, 64, time.Now().Add(time.Hour))
		for i, next := range sources {
			sources[i] = func() []byte {
				if busy.Err() != nil {
					return nil
				}
				return next()
			}
		}
		_, err := load(ctx, address, sources)
		loaded <- err
	}()
	err = s.on(ctx, database, func(conn *pgx.Conn) error {
		for len(delays) < revocations {
			delay, err := revokeOne(ctx, conn, address, key)
			if err != nil {
				return err
			}
			delays = append(delays, delay)
			select {
			case <-time.After(revocationPause):
			case err := <-loaded:
				return errors.Join(errors.New("the load has ended"), err)
			}
		}
		return nil
	})
	stop()
	if err != nil {
		return nil, err
	}
	slices.Sort(delays)
	return delays, <-loaded
}

func revokeOne(ctx context.Context, conn *pgx.Conn, address string, key secret.APIKey) (time.Duration, error) {
	user := rand.IntN(accessUsers)            //nolint:gosec // G404: no secret.
	user += firstUser + (1 - min(user%10, 1)) // one in ten has ended
	allowed := func() (bool, error) { return askOnce(ctx, address, key, user) }
	ask := func(want bool) error {
		for {
			if got, err := allowed(); err != nil || got == want {
				return err
			}
		}
	}
	set := func(held string) error {
		_, err := conn.Exec(ctx, "UPDATE subscriptions SET held_at = "+held+" WHERE user_id = $1", strconv.Itoa(user))
		return err
	}
	if err := ask(true); err != nil {
		return 0, err
	}
	if err := set("now()"); err != nil {
		return 0, err
	}
	committed := time.Now()
	if err := ask(false); err != nil {
		return 0, err
	}
	delay := time.Since(committed)
	return delay, set("NULL")
}

func askOnce(ctx context.Context, address string, key secret.APIKey, user int) (bool, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/v1/access?feature=images&user_id="+strconv.Itoa(user), nil)
	if err != nil {
		return false, err
	}
	request.Header.Set("Authorization", "Bearer "+key.Text.Reveal())
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK && response.StatusCode != http.StatusServiceUnavailable {
		err = fmt.Errorf("an access check was answered with %d", response.StatusCode)
	}
	return strings.HasPrefix(string(body), `{"allowed":true`), err
}

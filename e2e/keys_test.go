package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// keyed makes a subscription of a user under an Idempotency-Key. replayed says that the answer is that of an earlier call.
func (c caller) keyed(ctx context.Context, key, user string, ends time.Time) (a answer, replayed bool, err error) {
	body, err := json.Marshal(map[string]any{"user_id": user, "plan": "pro", "expires_at": ends})
	if err != nil {
		return a, false, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/subscriptions", bytes.NewReader(body))
	if err != nil {
		return a, false, err
	}
	request.Header.Set("Authorization", "Bearer "+c.key)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	response, err := c.http.Do(request)
	if err != nil {
		return a, false, err
	}
	defer response.Body.Close()
	var content bytes.Buffer
	_, err = content.ReadFrom(response.Body)
	return answer{status: response.StatusCode, body: content.Bytes()}, response.Header.Get("Idempotency-Replayed") == "true", err
}

// The server is killed while it does what a keyed request asks for. The client, who heard nothing, asks again: before the
// effect the key is free once its lease has passed, after it the answer is the first one. There is one effect in all.
func TestServerIsKilledUnderAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	for place, done := range map[string]bool{"key_claimed": false, "key_before_answer": true} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.plan(t)
			ends := now().Add(day)
			p := s.program("TERMKEEPER_FAILPOINT=" + place)
			p.build = failpoints
			doomed := s.launchAPI(t, p)
			_, _, err := doomed.keyed(t.Context(), "key-1", "u_1", ends)
			require.Error(t, err, "there is no answer")
			requireKilled(t, doomed.process)

			api := s.startAPI(t)
			a, replayed, err := api.keyed(t.Context(), "key-1", "u_1", ends)
			require.NoError(t, err)
			if !done {
				require.Equal(t, http.StatusConflict, a.status, "%s", a.body)
				require.Positive(t, s.count(t, `SELECT count(*) FROM idempotency_keys WHERE leased_until BETWEEN now() AND now() + interval '1 minute'`),
					"the key is free again within a minute")
				// The test does not wait for it.
				s.exec(t, `UPDATE idempotency_keys SET leased_until = now()`)
				a, replayed, err = api.keyed(t.Context(), "key-1", "u_1", ends)
				require.NoError(t, err)
			}
			require.Equal(t, http.StatusCreated, a.status, "%s", a.body)
			require.Equal(t, done, replayed)
			var made subscription
			a.decode(t, &made)
			require.Equal(t, api.only(t, "u_1").ID, made.ID)
			again, replayed, err := api.keyed(t.Context(), "key-1", "u_1", ends)
			require.NoError(t, err)
			require.True(t, replayed)
			require.Equal(t, a, again)
			require.Equal(t, []string{"created"}, api.history(t, made.ID))
		})
	}
}

// The same keyed requests come to two processes at once, each many times.
func TestKeysComeToTwoProcessesAtOnce(t *testing.T) {
	t.Parallel()
	const keys, copies = 20, 16
	s, apis := twoAPIs(t)
	ends := now().Add(day)
	type heard struct {
		answer
		replayed bool
	}
	all := make([][]heard, keys)
	group, ctx := errgroup.WithContext(t.Context())
	for k := range keys {
		all[k] = make([]heard, copies)
		for i := range copies {
			group.Go(func() (err error) {
				h := &all[k][i]
				h.answer, h.replayed, err = apis[i%2].keyed(ctx, fmt.Sprintf("key-%d", k), fmt.Sprintf("u_%d", k), ends)
				return err
			})
		}
	}
	require.NoError(t, group.Wait())
	var first, replays, conflicts int
	for k, list := range all {
		made := apis[0].only(t, fmt.Sprintf("u_%d", k))
		firsts := 0
		for _, h := range list {
			switch {
			case h.status == http.StatusConflict:
				conflicts++
				continue
			case h.replayed:
				replays++
			default:
				firsts++
			}
			require.Equal(t, http.StatusCreated, h.status, "%s", h.body)
			var got subscription
			h.decode(t, &got)
			require.Equal(t, made.ID, got.ID)
		}
		require.LessOrEqual(t, firsts, 1, "key %d", k)
		first += firsts
	}
	t.Logf("%d first answers, %d replays, %d conflicts", first, replays, conflicts)
	require.Equal(t, keys, first)
	require.Equal(t, keys, s.count(t, `SELECT count(*) FROM subscription_events`), "effects")
	for k := range keys {
		key, user := fmt.Sprintf("key-%d", k), fmt.Sprintf("u_%d", k)
		a, replayed, err := apis[k%2].keyed(t.Context(), key, user, ends)
		require.NoError(t, err)
		require.True(t, replayed, "%d: %s", a.status, a.body)
		a, _, err = apis[k%2].keyed(t.Context(), key, user, ends.Add(time.Hour))
		require.NoError(t, err)
		require.Equal(t, http.StatusUnprocessableEntity, a.status, "another body: %s", a.body)
	}
	require.Equal(t, keys, s.count(t, `SELECT count(*) FROM subscriptions`))
}

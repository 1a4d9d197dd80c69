package e2e

import (
	"errors"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cached makes an API answer access checks from memory.
const cached = "TERMKEEPER_ACCESS_MODE=cached"

// A process that was stopped and goes on knows that it was away: nobody who asks after that gets an answer from before. Two
// processes see what the other one writes within a second, and ends are exact in both.
func TestCachedAccess(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.plan(t)
	one, two := s.startAPI(t, cached), s.startAPI(t, cached)
	made := one.subscribe(t, "u_1", now().Add(day))
	allowed := func(want bool) {
		t.Helper()
		committed := time.Now()
		for _, api := range []*apiProcess{one, two} {
			await(t, "the change is seen", func() error {
				begun := time.Now()
				said := api.access(t, "u_1", time.Time{})
				if begun.Sub(committed) >= time.Second {
					require.Equal(t, want, said.Allowed, "a second after the change")
				}
				if said.Allowed != want {
					return errors.New("not yet")
				}
				return nil
			})
		}
	}
	allowed(true)
	one.want(t, http.StatusOK, http.MethodPost, "/v1/subscriptions/"+made.ID+"/pause", map[string]any{"reason": "a test"})
	allowed(false)
	s.exec(t, `UPDATE subscriptions SET held_at = NULL`)
	allowed(true)

	one.signal(t, syscall.SIGSTOP)
	s.exec(t, `UPDATE subscriptions SET held_at = now()`)
	changed := time.Now()
	await(t, "the other one sees it, and longer than a second is over", func() error {
		if two.access(t, "u_1", time.Time{}).Allowed || time.Since(changed) < 1500*time.Millisecond {
			return errors.New("not yet")
		}
		return nil
	})
	one.signal(t, syscall.SIGCONT)
	for range 20 {
		require.False(t, one.access(t, "u_1", time.Time{}).Allowed, "it was away while it changed")
	}

	end := now().Add(3 * time.Second)
	one.subscribe(t, "u_2", end)
	before, _ := two.askAcross(t, "u_2", end)
	require.Positive(t, before)
}

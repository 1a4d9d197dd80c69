package subscription_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/subscription"
)

func ours() subscription.Subscription { return holding(nil).Subscription }

func stripes() subscription.Subscription {
	s := ours()
	s.Provider, s.ExternalID, s.ProviderStatus, s.LeewayUntil = subscription.Stripe, "sub_1", "active", noon.Add(time.Hour)
	return s
}

func TestCancel(t *testing.T) {
	at := noon.Add(-time.Minute)
	s, changes, err := ours().Cancel(at, false)
	require.NoError(t, err)
	require.Equal(t, subscription.Canceled, s.Status)
	require.Equal(t, at, s.ExpiresAt)
	require.Equal(t, []subscription.Change{{Type: subscription.EventCanceled, Boundary: at}}, changes)
	_, _, err = s.Extend(at, time.Hour)
	require.ErrorIs(t, err, subscription.ErrConflict)

	s, _, err = ours().Cancel(at, true)
	require.NoError(t, err)
	require.True(t, s.CancelAtPeriodEnd)
	require.True(t, s.Gives(noon.Add(-tick)), "allowed until the end")
	_, _, err = s.Cancel(at, true)
	require.ErrorIs(t, err, subscription.ErrConflict)
	s, _, err = s.Uncancel()
	require.NoError(t, err)
	require.False(t, s.CancelAtPeriodEnd)
	_, _, err = s.Uncancel()
	require.ErrorIs(t, err, subscription.ErrConflict)

	_, _, err = stripes().Cancel(at, false)
	require.ErrorIs(t, err, subscription.ErrProviderOwned)
	late := ours()
	s, _, err = late.Cancel(noon.Add(time.Hour), false)
	require.NoError(t, err)
	require.Equal(t, noon, s.ExpiresAt, "canceling late moves no end")
}

func TestPauseAndResume(t *testing.T) {
	at := noon.Add(-10 * time.Minute)
	for name, s := range map[string]subscription.Subscription{"ours": ours(), "stripe": stripes()} {
		held, _, err := s.Pause(at)
		require.NoError(t, err, name)
		require.False(t, held.Gives(at), name)
		_, _, err = held.Pause(at)
		require.ErrorIs(t, err, subscription.ErrConflict, name)

		plain, _, err := held.Resume(at.Add(5*time.Minute), false)
		require.NoError(t, err, name)
		require.Equal(t, s.AccessUntil(), plain.AccessUntil(), "paused time is not given back")

		given, _, err := held.Resume(at.Add(5*time.Minute), true)
		require.NoError(t, err, name)
		require.Equal(t, s.AccessUntil().Add(5*time.Minute), given.AccessUntil(), name)
		if !s.Ours() {
			require.Equal(t, s.ExpiresAt, given.ExpiresAt, "the provider's term is not ours to move")
		}
	}
	held, _, _ := ours().Pause(at)
	held.Status, held.ExpiredAt = subscription.Expired, noon
	back, _, err := held.Resume(noon.Add(time.Hour), true)
	require.NoError(t, err)
	require.Equal(t, noon.Add(time.Hour+10*time.Minute), back.ExpiresAt, "what was left when it was held is left again")
	require.Equal(t, subscription.Active, back.Status)
	require.Zero(t, back.ExpiredAt)
}

func TestOneOfOursThatWasMadePausedHasAWayOut(t *testing.T) {
	at := noon.Add(-10 * time.Minute)
	made := ours()
	made.Status = subscription.Paused
	held, _, err := made.Pause(at)
	require.NoError(t, err)
	for name, s := range map[string]subscription.Subscription{"as made": made, "held as well": held} {
		for _, addPausedTime := range []bool{false, true} {
			resumed, changes, err := s.Resume(at, addPausedTime)
			require.NoError(t, err, name)
			require.True(t, resumed.Gives(at), name)
			require.Equal(t, made.ExpiresAt, resumed.ExpiresAt, name)
			require.Equal(t, subscription.EventResumed, changes[0].Type, name)
		}
	}
	theirs := stripes()
	theirs.Status = subscription.Paused
	_, _, err = theirs.Resume(at, false)
	require.ErrorIs(t, err, subscription.ErrConflict, "only the provider ends its own pause")
	theirs, _, err = theirs.Pause(at)
	require.NoError(t, err)
	theirs, _, err = theirs.Resume(at, false)
	require.NoError(t, err)
	require.Equal(t, subscription.Paused, theirs.Status)
}

func TestExtend(t *testing.T) {
	s, _, err := ours().Extend(noon.Add(-time.Minute), time.Hour)
	require.NoError(t, err)
	require.Equal(t, noon.Add(time.Hour), s.ExpiresAt, "from its end")
	s, _, err = ours().Extend(noon.Add(time.Minute), time.Hour)
	require.NoError(t, err)
	require.Equal(t, noon.Add(time.Hour+time.Minute), s.ExpiresAt, "from now when it has ended")

	s, _, err = stripes().Extend(noon, time.Hour)
	require.NoError(t, err)
	require.Equal(t, noon, s.ExpiresAt)
	require.Equal(t, noon.Add(2*time.Hour), s.CompUntil, "from the end of its access")

	gone := ours()
	gone.Status, gone.ExpiredAt = subscription.Expired, noon
	s, changes, err := gone.Extend(noon.Add(time.Minute), time.Hour)
	require.NoError(t, err)
	require.True(t, s.Gives(noon.Add(2*time.Minute)))
	require.Equal(t, subscription.EventExtended, changes[0].Type)

	lifetime := ours()
	lifetime.ExpiresAt = subscription.Forever
	_, _, err = lifetime.Extend(noon, time.Hour)
	require.ErrorIs(t, err, subscription.ErrConflict)
	far := ours()
	far.ExpiresAt = subscription.Forever.Add(-time.Minute)
	_, _, err = far.Extend(noon, time.Hour)
	require.ErrorIs(t, err, subscription.ErrConflict)
}

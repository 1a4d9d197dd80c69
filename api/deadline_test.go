package api

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDeadlined(t *testing.T) {
	t.Parallel()
	type key struct{}
	parent, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, 1))
	hour := func() *deadlined { return &deadlined{Context: parent, at: time.Now().Add(time.Hour)} }

	d := hour()
	at, ok := d.Deadline()
	require.True(t, ok)
	require.Equal(t, d.at, at)
	require.Equal(t, 1, d.Value(key{}))
	require.NoError(t, d.Err())
	require.Equal(t, 1, d.Value(key{}))
	child, childCancel := context.WithCancel(d)
	defer childCancel()
	d.end()
	<-child.Done()
	require.ErrorIs(t, d.Err(), context.Canceled)

	d = hour()
	d.end() // nobody has waited, and somebody comes late
	<-d.Done()
	require.ErrorIs(t, d.Err(), context.Canceled)

	d = &deadlined{Context: parent, at: time.Now()}
	<-d.Done()
	require.ErrorIs(t, d.Err(), context.DeadlineExceeded)
	require.ErrorIs(t, context.Cause(d), context.DeadlineExceeded)

	d = hour()
	waits := d.Done()
	cancel()
	<-waits
	require.ErrorIs(t, d.Err(), context.Canceled, "the client has gone")

	sooner, soonerCancel := context.WithTimeout(t.Context(), time.Minute)
	defer soonerCancel()
	want, _ := sooner.Deadline()
	at, _ = (&deadlined{Context: sooner, at: time.Now().Add(time.Hour)}).Deadline()
	require.Equal(t, want, at)
}

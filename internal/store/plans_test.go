package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

func TestPlansKeepWhatIsWritten(t *testing.T) {
	t.Parallel()
	s := store.New(storetest.New(t))
	want := store.Plan{
		Key: "pro", Name: "Pro", Features: []string{"images"}, StripePriceIDs: []string{"price_1", "price_2"}, Price: &store.Price{Amount: 1999, Currency: "USD"},
		Duration: 720*time.Hour + 123456*time.Microsecond, GracePeriod: 72 * time.Hour, RefundPolicy: "end",
	}
	made, err := s.CreatePlan(t.Context(), want)
	require.NoError(t, err)
	want.CreatedAt, want.UpdatedAt = made.CreatedAt, made.UpdatedAt
	require.Equal(t, want, made)
	read, err := s.Plan(t.Context(), "pro")
	require.NoError(t, err)
	require.Equal(t, want, read)

	_, err = s.CreatePlan(t.Context(), store.Plan{Key: "pro", RefundPolicy: "keep"})
	require.ErrorIs(t, err, store.ErrExists)
	_, err = s.CreatePlan(t.Context(), store.Plan{Key: "other", StripePriceIDs: []string{"price_2"}, RefundPolicy: "keep"})
	require.ErrorIs(t, err, store.ErrPriceTaken)
	_, err = s.Plan(t.Context(), "other")
	require.ErrorIs(t, err, store.ErrNotFound)
}

func TestPlanChanges(t *testing.T) {
	t.Parallel()
	s := store.New(storetest.New(t))
	made, err := s.CreatePlan(t.Context(), store.Plan{Key: "pro", Features: []string{"a"}, StripePriceIDs: []string{"price_1"}, Duration: time.Hour, RefundPolicy: "keep"})
	require.NoError(t, err)
	changed, err := s.ChangePlan(t.Context(), "pro", func(p *store.Plan) error {
		require.Equal(t, made, *p)
		p.Name, p.Features, p.Duration, p.GracePeriod = "Pro", nil, 0, time.Minute
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, store.Plan{
		Key: "pro", Name: "Pro", Features: []string{}, StripePriceIDs: []string{"price_1"}, GracePeriod: time.Minute, RefundPolicy: "keep",
		CreatedAt: made.CreatedAt, UpdatedAt: changed.UpdatedAt,
	}, changed)

	refused := errors.New("refused")
	_, err = s.ChangePlan(t.Context(), "pro", func(p *store.Plan) error { p.Name = "lost"; return refused })
	require.ErrorIs(t, err, refused)
	read, err := s.Plan(t.Context(), "pro")
	require.NoError(t, err)
	require.Equal(t, changed, read)
	_, err = s.ChangePlan(t.Context(), "none", func(*store.Plan) error { return nil })
	require.ErrorIs(t, err, store.ErrNotFound)
}

// TestPlansSeededBySQL may have intervals that Go cannot write: months and days.
func TestPlansSeededBySQL(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO plans (key, duration, grace_period) VALUES ('a', '1 month', '3 days'), ('b', NULL, '0'), ('c', '36:00:00.5', '1 us')`)
	require.NoError(t, err)
	plans, err := store.New(pool).Plans(t.Context(), "", 10)
	require.NoError(t, err)
	require.Len(t, plans, 3)
	for i, want := range [][2]time.Duration{{30 * 24 * time.Hour, 72 * time.Hour}, {0, 0}, {36*time.Hour + 500*time.Millisecond, time.Microsecond}} {
		require.Equal(t, want, [2]time.Duration{plans[i].Duration, plans[i].GracePeriod})
	}
	rest, err := store.New(pool).Plans(t.Context(), "a", 1)
	require.NoError(t, err)
	require.Len(t, rest, 1)
	require.Equal(t, "b", rest[0].Key)
}

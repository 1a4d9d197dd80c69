package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

func TestUsers(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	_, err := s.User(t.Context(), "u_1")
	require.ErrorIs(t, err, store.ErrNotFound)

	made, created, err := s.PutUser(t.Context(), store.User{ID: "u_1", Email: "ada@example.org", Name: "Ada", Locale: "en", TimeZone: "UTC"})
	require.NoError(t, err)
	require.True(t, created)
	read, err := s.User(t.Context(), "u_1")
	require.NoError(t, err)
	require.Equal(t, made, read)

	put, created, err := s.PutUser(t.Context(), store.User{ID: "u_1", Name: "Ada L."})
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, store.User{ID: "u_1", Name: "Ada L.", CreatedAt: made.CreatedAt, UpdatedAt: put.UpdatedAt}, put)
	var unknown bool
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT email IS NULL AND locale IS NULL AND time_zone IS NULL FROM users`).Scan(&unknown))
	require.True(t, unknown, "unknown is null and not an empty text")
}

func TestStripeCustomerIsLinkedToTheLastUserNamed(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	for _, user := range []string{"u_1", "u_1", "u_2"} {
		require.NoError(t, s.LinkStripeCustomer(t.Context(), "cus_1", user))
	}
	var user string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT user_id FROM stripe_customers`).Scan(&user))
	require.Equal(t, "u_2", user)
}

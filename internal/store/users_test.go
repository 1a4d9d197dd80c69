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

	made, err := s.PutUser(t.Context(), store.User{ID: "u_1", Email: "ada@example.org", Name: "Ada", Locale: "en", TimeZone: "UTC"})
	require.NoError(t, err)
	require.True(t, made.Created)
	read, err := s.User(t.Context(), "u_1")
	require.NoError(t, err)
	require.Equal(t, made.User, read)

	put, err := s.PutUser(t.Context(), store.User{ID: "u_1", Name: "Ada L."})
	require.NoError(t, err)
	require.False(t, put.Created)
	require.Equal(t, store.User{ID: "u_1", Name: "Ada L.", StripeCustomerIDs: []string{}, CreatedAt: made.CreatedAt, UpdatedAt: put.UpdatedAt}, put.User)
	var unknown bool
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT email IS NULL AND locale IS NULL AND time_zone IS NULL FROM users`).Scan(&unknown))
	require.True(t, unknown, "unknown is null and not an empty text")
}

func TestStripeCustomerIsLinkedToTheLastUserNamed(t *testing.T) {
	t.Parallel()
	pool := storetest.New(t)
	s := store.New(pool)
	for _, user := range []string{"u_1", "u_1", "u_2"} {
		linked, err := s.LinkStripeCustomer(t.Context(), "cus_1", user)
		require.NoError(t, err)
		require.Equal(t, store.StripeCustomer{ID: "cus_1", UserID: user}, linked)
	}
	var user string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT user_id FROM stripe_customers`).Scan(&user))
	require.Equal(t, "u_2", user)
}

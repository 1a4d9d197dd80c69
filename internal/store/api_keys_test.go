package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/secret"
	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

func TestAPIKeys(t *testing.T) {
	t.Parallel()
	s := store.New(storetest.New(t))
	key := secret.NewAPIKey()
	made, err := s.CreateAPIKey(t.Context(), store.APIKey{Name: "shop", Role: "access", Hash: key.Hash[:], Prefix: key.Prefix})
	require.NoError(t, err)
	found, err := s.APIKeyByHash(t.Context(), key.Hash[:])
	require.NoError(t, err)
	require.Equal(t, made, found)
	other := secret.NewAPIKey()
	_, err = s.APIKeyByHash(t.Context(), other.Hash[:])
	require.ErrorIs(t, err, store.ErrNotFound)

	revoked, err := s.RevokeAPIKey(t.Context(), made.ID)
	require.NoError(t, err)
	require.NotNil(t, revoked.RevokedAt)
	_, err = s.APIKeyByHash(t.Context(), key.Hash[:])
	require.ErrorIs(t, err, store.ErrNotFound)
	again, err := s.RevokeAPIKey(t.Context(), made.ID)
	require.NoError(t, err)
	require.Equal(t, revoked, again, "the first revocation counts")
	_, err = s.RevokeAPIKey(t.Context(), store.NewID())
	require.ErrorIs(t, err, store.ErrNotFound)

	list, err := s.APIKeys(t.Context())
	require.NoError(t, err)
	require.Equal(t, []store.APIKey{revoked}, list)

	_, err = s.CreateAPIKey(t.Context(), store.APIKey{Name: "boss", Role: "owner", Hash: other.Hash[:], Prefix: other.Prefix})
	require.Error(t, err, "the table knows the roles")
}

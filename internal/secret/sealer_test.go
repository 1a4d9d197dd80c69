package secret_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/secret"
)

func TestSealedValuesOpenOnlyWithTheirKeyAtTheirPlace(t *testing.T) {
	t.Parallel()
	s, err := secret.NewSealer(secret.NewKey())
	require.NoError(t, err)
	sealed := s.Seal(secret.NewText("canary"), "a:1")
	require.NotContains(t, string(sealed), "canary")
	require.NotEqual(t, sealed, s.Seal(secret.NewText("canary"), "a:1"), "a nonce of its own each time")
	opened, err := s.Open(sealed, "a:1")
	require.NoError(t, err)
	require.Equal(t, "canary", opened.Reveal())

	_, err = s.Open(sealed, "a:2")
	require.ErrorIs(t, err, secret.ErrSealed, "moved to another row")
	other, err := secret.NewSealer(secret.NewKey())
	require.NoError(t, err)
	_, err = other.Open(sealed, "a:1")
	require.ErrorIs(t, err, secret.ErrSealed, "another key")
	for i := range sealed {
		changed := append([]byte(nil), sealed...)
		changed[i] ^= 1
		_, err = s.Open(changed, "a:1")
		require.ErrorIs(t, err, secret.ErrSealed, "byte %d", i)
		_, err = s.Open(sealed[:i], "a:1")
		require.ErrorIs(t, err, secret.ErrSealed, "cut at %d", i)
	}
}

func TestKeysOfAnotherLengthAreRefused(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "x", strings.Repeat("a", 32), base64.StdEncoding.EncodeToString(make([]byte, 31)), base64.StdEncoding.EncodeToString(make([]byte, 33))} {
		_, err := secret.NewSealer(secret.NewText(key))
		require.ErrorIs(t, err, secret.ErrKey)
	}
}

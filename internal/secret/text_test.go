package secret_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"termkeeper/internal/secret"
)

func TestTextShowsItselfOnlyOnDemand(t *testing.T) {
	t.Parallel()
	const canary = "canary-6f1d"
	s := secret.NewText(canary)
	require.Equal(t, canary, s.Reveal())
	require.False(t, s.Empty())
	require.True(t, secret.Text{}.Empty())

	type holder struct {
		Key  secret.Text
		Keys []secret.Text
	}
	h := holder{Key: s, Keys: []secret.Text{s}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		require.NotContains(t, fmt.Sprintf(verb, s), canary, verb)
		require.NotContains(t, fmt.Sprintf(verb, h), canary, verb)
		require.NotContains(t, fmt.Sprintf(verb, &h), canary, verb)
	}
	encoded, err := json.Marshal(h)
	require.NoError(t, err)
	require.JSONEq(t, `{"Key":"[redacted]","Keys":["[redacted]"]}`, string(encoded))

	core, logs := observer.New(zap.InfoLevel)
	zap.New(core).Info("holding", zap.Any("holder", h), zap.Stringer("key", s))
	require.NotContains(t, fmt.Sprint(logs.All()[0].ContextMap()), canary)
}

func TestAPIKeys(t *testing.T) {
	t.Parallel()
	a, b := secret.NewAPIKey(), secret.NewAPIKey()
	require.NotEqual(t, a.Text.Reveal(), b.Text.Reveal())
	require.Regexp(t, `^tk_[A-Za-z0-9_-]{43}$`, a.Text.Reveal())
	require.Equal(t, a.Hash, secret.HashAPIKey(a.Text.Reveal()))
	require.Equal(t, a.Text.Reveal()[:9], a.Prefix)
	require.NotContains(t, fmt.Sprintf("%+v", a), a.Text.Reveal())
}

package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/config"
	"termkeeper/internal/secret"
)

func TestPrivateTargetsAreForDevelopment(t *testing.T) {
	t.Parallel()
	for environment, want := range map[string]map[string]bool{
		"development": {"": true, "true": true, "false": false},
		"staging":     {"": false, "true": true, "false": false},
		"production":  {"": false, "false": false},
	} {
		for value, allowed := range want {
			c, err := config.Load([]string{"TERMKEEPER_ENV=" + environment, "TERMKEEPER_ALLOW_PRIVATE_TARGETS=" + value}, jobs)
			require.NoError(t, err)
			require.Equal(t, allowed, c.PrivateTargets(), "%s %q", environment, value)
		}
	}
	_, err := config.Load([]string{"TERMKEEPER_ENV=production", "TERMKEEPER_ALLOW_PRIVATE_TARGETS=true"}, jobs)
	require.ErrorContains(t, err, "TERMKEEPER_ALLOW_PRIVATE_TARGETS must not be true in production")
	_, err = config.Load([]string{"TERMKEEPER_ALLOW_PRIVATE_TARGETS=yes"}, jobs)
	require.ErrorContains(t, err, "TERMKEEPER_ALLOW_PRIVATE_TARGETS must be true or false")
}

func TestSecretKeyHas32Bytes(t *testing.T) {
	t.Parallel()
	c, err := config.Load([]string{"TERMKEEPER_SECRET_KEY=" + secret.NewKey().Reveal()}, jobs)
	require.NoError(t, err)
	_, err = secret.NewSealer(c.SecretKey)
	require.NoError(t, err)
	for _, wrong := range []string{"canary", "Y2FuYXJ5", "a b"} {
		_, err := config.Load([]string{"TERMKEEPER_SECRET_KEY=" + wrong}, jobs)
		require.ErrorContains(t, err, "TERMKEEPER_SECRET_KEY must be the base64 of 32 bytes")
		require.NotContains(t, err.Error(), "canary")
	}
}

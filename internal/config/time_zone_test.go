package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/config"
)

func TestTimeZone(t *testing.T) {
	t.Parallel()
	c, err := config.Load(nil, nil)
	require.NoError(t, err)
	require.Equal(t, "UTC", c.Zone().String())
	c, err = config.Load([]string{"TERMKEEPER_TIME_ZONE=Europe/Berlin"}, nil)
	require.NoError(t, err)
	require.Equal(t, "Europe/Berlin", c.Zone().String())
	for _, wrong := range []string{"Mars/Olympus", "Local", "../etc/passwd"} {
		_, err = config.Load([]string{"TERMKEEPER_TIME_ZONE=" + wrong}, nil)
		require.ErrorContains(t, err, "TERMKEEPER_TIME_ZONE must be the name of a time zone", wrong)
	}
}

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHealthcheck(t *testing.T) {
	t.Parallel()
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz/ready" {
			status = http.StatusNotFound
		}
		w.WriteHeader(status)
		_, _ = fmt.Fprintln(w, "words of the process")
	}))
	defer server.Close()
	address := server.Listener.Addr().String()
	_, port, _ := strings.Cut(address, ":")
	for _, environ := range [][]string{{"TERMKEEPER_OPS_ADDR=" + address}, {"TERMKEEPER_OPS_ADDR=0.0.0.0:" + port}, {"TERMKEEPER_OPS_ADDR=:" + port}} {
		code, stdout, stderr := command(t, environ, "healthcheck")
		require.Equal(t, exitDone, code, stderr)
		require.Equal(t, "words of the process\n", stdout)
	}
	status = http.StatusServiceUnavailable
	code, stdout, stderr := command(t, nil, "healthcheck", "--ops", address)
	require.Equal(t, exitNo, code)
	require.Empty(t, stdout)
	require.Equal(t, "termkeeper: words of the process\n", stderr)

	server.Close()
	code, _, stderr = command(t, nil, "healthcheck", "--ops", address)
	require.Equal(t, exitUnreachable, code)
	require.Contains(t, stderr, "nothing answers at "+address)
	code, _, _ = command(t, nil, "healthcheck", "--ops", "nowhere")
	require.Equal(t, exitUsage, code)
}

package api

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"
)

// TestStopLetsRequestsFinish: while a request runs, Stop waits for it; new connections are still answered and closed until
// then, and after it nobody is served.
func TestStopLetsRequestsFinish(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	begun, finish := make(chan struct{}), make(chan struct{})
	s.server.echo.GET("/slow", func(c echo.Context) error {
		close(begun)
		<-finish
		return c.String(http.StatusOK, "done")
	})
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served, stopped := make(chan error, 1), make(chan error, 1)
	go func() { served <- s.server.Serve(listener) }()
	get := func(path string) (int, bool, string, error) {
		client := &http.Client{Transport: &http.Transport{}, Timeout: 20 * time.Second}
		defer client.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+path, nil)
		if err != nil {
			return 0, false, "", err
		}
		response, err := client.Do(request)
		if err != nil {
			return 0, false, "", err
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		return response.StatusCode, response.Close, string(body), err
	}
	slow := make(chan string, 1)
	go func() {
		_, _, body, err := get("/slow")
		if err != nil {
			body = err.Error()
		}
		slow <- body
	}()
	<-begun
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
		defer cancel()
		stopped <- s.server.Stop(ctx)
	}()
	require.Eventually(t, s.server.stopping.Load, 5*time.Second, time.Millisecond)
	if status, closes, _, err := get("/v1/nothing"); err == nil { // refused where the farewell was over already
		require.Equal(t, http.StatusNotFound, status)
		require.True(t, closes, "an answer says that its connection closes")
	}
	require.NoError(t, <-served, "new connections are no longer taken")
	require.Empty(t, stopped, "the slow request is still running")
	close(finish)
	require.Equal(t, "done", <-slow)
	require.NoError(t, <-stopped)
	_, _, _, err = get("/v1/nothing")
	require.Error(t, err)
}

func TestStopGivesUpAtItsDeadline(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	begun, finish := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(finish) })
	s.server.echo.GET("/slow", func(echo.Context) error {
		close(begun)
		<-finish
		return nil
	})
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = s.server.Serve(listener) }()
	go func() {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+"/slow", nil)
		if err == nil {
			if response, err := http.DefaultClient.Do(request); err == nil {
				_ = response.Body.Close()
			}
		}
	}()
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.server.Stop(ctx), context.DeadlineExceeded)
}

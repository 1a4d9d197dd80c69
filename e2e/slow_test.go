package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// A hundred clients send a byte a second, in their heads or in their bodies. Each is cut off long before it is done, and
// everybody else is answered meanwhile.
func TestSlowClientsAreCutOff(t *testing.T) {
	t.Parallel()
	const clients, long = 50, 120 // of each kind; bytes, so seconds
	s := newSystem(t)
	s.plan(t)
	api := s.startAPI(t)
	api.subscribe(t, "u_1", now().Add(day))
	address := strings.TrimPrefix(api.url, "http://")
	starts := []string{
		"GET /v1/access?user_id=u_1 HTTP/1.1\r\nHost: " + address + "\r\nX-Slow: ",
		fmt.Sprintf("POST /v1/webhooks/stripe HTTP/1.1\r\nHost: %s\r\nStripe-Signature: t=1,v1=00\r\nContent-Length: %d\r\n\r\n", address, long),
		fmt.Sprintf("POST /v1/subscriptions HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", address, s.key, long),
	}
	ended := make(chan struct{})
	group, ctx := errgroup.WithContext(t.Context())
	for i := range clients * len(starts) {
		group.Go(func() error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return err
			}
			defer conn.Close()
			return sendSlowly(conn, starts[i%len(starts)], long)
		})
	}
	var slow error
	go func() {
		defer close(ended)
		slow = group.Wait()
	}()
	answered := 0
	for open := true; open; answered++ {
		select {
		case <-ended:
			open = false
		default:
		}
		require.True(t, api.access(t, "u_1", time.Time{}).Allowed)
	}
	require.NoError(t, slow)
	t.Logf("%d checks were answered meanwhile", answered)
	require.Greater(t, answered, clients)
}

// sendSlowly sends a byte a second until the server has had enough. The error says that it had not.
func sendSlowly(conn net.Conn, start string, long int) error {
	if _, err := io.WriteString(conn, start); err != nil {
		return err
	}
	said := make(chan error, 1)
	go func() {
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode < http.StatusBadRequest {
				err = fmt.Errorf("it was answered with %d", response.StatusCode)
				said <- err
				return
			}
		}
		said <- nil // a refusal, or the end of the connection
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for range long {
		select {
		case err := <-said:
			return err
		case <-tick.C:
			if _, err := io.WriteString(conn, "x"); err != nil {
				return nil // it was cut off, which is what is wanted
			}
		}
	}
	return errors.New("the server has taken all of it")
}

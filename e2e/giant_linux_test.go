package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"termkeeper/internal/simulator"
)

// Two hundred bodies of 10 MB at once, with and without a length, and bodies that would be 128 MiB if anybody inflated
// them. None is taken, and the server grows by no more than the 1 MiB that it reads of each, twice for the garbage: not by 2 GB.
func TestGiantBodiesTakeNoMemory(t *testing.T) {
	t.Parallel()
	const giants, size, bombs, inflated, growth = 200, 10_000_000, 20, 128 << 20, 400 << 20
	s := newSystem(t)
	s.plan(t)
	api := s.startAPI(t)
	api.subscribe(t, "u_1", now().Add(day))
	api.http = &http.Client{Timeout: patience, Transport: &http.Transport{}}
	before := api.peak(t)

	paths := []string{"/v1/webhooks/stripe", "/v1/subscriptions", "/v1/plans"}
	var refused atomic.Int64
	group, ctx := errgroup.WithContext(t.Context())
	for i := range giants {
		group.Go(func() error {
			var length int64 = size
			if i%2 == 1 {
				length = -1 // chunks
			}
			return again(func() (busy bool, err error) {
				return api.sendGiant(ctx, paths[i%len(paths)], io.LimitReader(endless{}, size), length, &refused)
			})
		})
	}
	require.NoError(t, group.Wait())
	afterGiants := api.peak(t)
	require.Greater(t, refused.Load(), int64(giants/2), "the others were cut off while they sent")

	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	_, err := io.Copy(w, io.LimitReader(endless{}, inflated))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	group, ctx = errgroup.WithContext(t.Context())
	for i := range bombs {
		group.Go(func() error {
			return again(func() (busy bool, err error) { return api.sendBomb(ctx, paths[i%len(paths)], bomb.Bytes()) })
		})
	}
	require.NoError(t, group.Wait())
	after := api.peak(t)
	t.Logf("at most %d MiB before, %d MiB after the giants, %d MiB after the bombs of %d kB", before>>20, afterGiants>>20, after>>20, bomb.Len()/1000)
	require.Less(t, after, before+growth)
	require.True(t, api.access(t, "u_1", time.Time{}).Allowed)
	require.Zero(t, s.count(t, `SELECT count(*) FROM payment_webhook_events`))
}

// endless is as many letters as anybody wants.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// again sends what a busy machine answered with a 503: the key was not looked up in time, and nothing was said of the body.
func again(send func() (busy bool, err error)) error {
	const tries = 50
	for range tries {
		if busy, err := send(); err != nil || !busy {
			return err
		}
	}
	return fmt.Errorf("%d times the answer was 503", tries)
}

// sendGiant demands 413, which it counts, or that the connection is closed before all is sent.
func (a *apiProcess) sendGiant(ctx context.Context, path string, body io.Reader, length int64, refused *atomic.Int64) (busy bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+path, body)
	if err != nil {
		return false, err
	}
	request.ContentLength = length
	request.Header.Set("Authorization", "Bearer "+a.key)
	request.Header.Set("Content-Type", "application/json")
	got, err := a.do(request)
	switch {
	case err != nil && ctx.Err() == nil:
		return false, nil // it was cut off while it sent
	case err != nil:
		return false, err
	case got.status == http.StatusServiceUnavailable:
		return true, nil
	case got.status != http.StatusRequestEntityTooLarge:
		return false, fmt.Errorf("%s: a giant was answered with %d: %s", path, got.status, got.body)
	}
	refused.Add(1)
	return false, nil
}

// sendBomb demands a refusal. For the webhook the bomb is signed as it is sent.
func (a *apiProcess) sendBomb(ctx context.Context, path string, bomb []byte) (busy bool, err error) {
	request, err := simulator.SignedRequest(ctx, a.url+path, bomb, a.secret, time.Now())
	if err != nil {
		return false, err
	}
	request.Header.Set("Authorization", "Bearer "+a.key)
	request.Header.Set("Content-Encoding", "gzip")
	got, err := a.do(request)
	busy = err == nil && got.status == http.StatusServiceUnavailable
	if err == nil && !busy && (got.status < http.StatusBadRequest || got.status >= http.StatusInternalServerError) {
		err = fmt.Errorf("%s: a bomb was answered with %d: %s", path, got.status, got.body)
	}
	return busy, err
}

// peak is the most memory that the process has ever had, in bytes.
func (p *process) peak(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "VmHWM:")
	require.True(t, found)
	var kilobytes int
	_, err = fmt.Sscan(rest, &kilobytes)
	require.NoError(t, err)
	return kilobytes << 10
}

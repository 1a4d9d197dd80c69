package api

import (
	"context"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
)

// deadlined is the context of one request: its caller, and a deadline whose timer is started by the first who waits for it. An access check that is
// answered from memory waits for nothing, and the timer would be a tenth of its cost.
type deadlined struct {
	context.Context // the request's own
	at              time.Time
	caller          *identity // nil until it is known

	mu     sync.Mutex
	timed  context.Context // nil until somebody waits
	cancel context.CancelFunc
	ended  bool
}

func (d *deadlined) started() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timed == nil {
		d.timed, d.cancel = context.WithDeadline(d.Context, d.at)
		if d.ended {
			d.cancel()
		}
	}
	return d.timed
}

// calledBy says who asks. A context or a map of its own for that would be a tenth of what an access check costs.
func calledBy(c echo.Context, caller *identity) {
	if ctx, ok := c.Request().Context().(*deadlined); ok {
		ctx.caller = caller
		return
	}
	c.SetRequest(c.Request().WithContext(context.WithValue(c.Request().Context(), callerKey{}, caller)))
}

// end is the end of the request: whoever still waits is told.
func (d *deadlined) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	if d.cancel != nil {
		d.cancel()
	}
}

// Deadline is when the time is over.
func (d *deadlined) Deadline() (time.Time, bool) {
	if sooner, ok := d.Context.Deadline(); ok && sooner.Before(d.at) {
		return sooner, true
	}
	return d.at, true
}

// Done starts the timer.
func (d *deadlined) Done() <-chan struct{} { return d.started().Done() }

// Err starts the timer.
func (d *deadlined) Err() error { return d.started().Err() }

// Value asks the context with the timer where there is one: contexts made from this one find it there, and need no
// goroutine to wait for it.
func (d *deadlined) Value(key any) any {
	if _, ok := key.(callerKey); ok && d.caller != nil {
		return d.caller
	}
	d.mu.Lock()
	timed := d.timed
	d.mu.Unlock()
	if timed != nil {
		return timed.Value(key)
	}
	return d.Context.Value(key)
}

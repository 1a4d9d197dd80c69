package activities

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	netmail "net/mail"
	"strings"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"golang.org/x/sync/errgroup"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/mail"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

const (
	// sendAtOnce bounds the messages that are being sent at the same time; as many are claimed at once.
	sendAtOnce = 16
	// sendStretch is how long a backlog is sent before the next look at the facts: an urgent one does not wait for its end.
	sendStretch = 200 * time.Millisecond
	// deliveryLease is longer than the second look, the sending and the mark together can take.
	deliveryLease = 2*mail.SendTimeout + 15*time.Second
	// deliveryAttempts is how often a message is tried that the server puts off. With the pauses below they span half a day.
	deliveryAttempts  = 12
	firstDeliveryWait = 10 * time.Second
	// panicAttempts is how often a message is tried that makes the program panic.
	panicAttempts = 3
	// deferredFactsAtOnce bounds the facts that failed before and are tried again, alone, in one round.
	deferredFactsAtOnce = 100
)

// unknownOutcome begins the last error of a delivery that may have arrived.
const unknownOutcome = "it may have arrived: "

// Outbox is the job that turns facts into deliveries and delivers them.
type Outbox struct {
	Store *store.Store
	Mail  *mail.Sender // nil where no mail server is configured: then nobody is told by mail
	Owner string       // names this process in leases
	Runs  *Runs
}

// Deliver dispatches facts and sends what is due. A fact becomes a delivery once per receiver, by a unique key. A delivery
// is sent under a lease with a fence and marked after it: at least once, and every attempt carries the same Message-ID.
func (a *Outbox) Deliver(ctx context.Context, in Run) (Tally, error) {
	return a.Runs.account(ctx, in, func(ctx context.Context, p *pace) (Tally, error) {
		d := &delivering{Outbox: a, in: in}
		for {
			worked, early, err := d.round(ctx, p)
			if err != nil {
				return d.tally, err
			}
			if early {
				return d.tally, d.askMore(ctx)
			}
			next, now, err := a.Store.NextOutboxWork(ctx)
			if err != nil {
				return d.tally, err
			}
			due := until(next, now)
			if due <= 0 && worked {
				continue
			}
			// What is due and not to be had (locked, or behind an earlier one) is looked at again after a tenth of a second.
			if !p.wait(ctx, max(due, 0)) {
				return d.tally, nil
			}
		}
	})
}

// delivering is one activity's work.
type delivering struct {
	*Outbox
	in    Run
	mu    sync.Mutex // messages are sent side by side
	tally Tally
}

func (d *delivering) count(t Tally) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tally = d.tally.Plus(t)
}

// round goes once over everything. Sending and dispatching take turns, so that a backlog of the one does not hold up the
// other.
func (d *delivering) round(ctx context.Context, p *pace) (worked, early bool, err error) {
	now, err := d.Store.Now(ctx)
	if err != nil {
		return false, false, err
	}
	if err := d.retryDeferred(ctx, now); err != nil {
		return false, false, err
	}
	var cursor string
	b := batches{first: d.in.Batch, most: d.in.MaxBatch}
	b.take = func(limit int) (int, error) {
		at, err := d.Store.Now(ctx)
		if err != nil {
			return 0, err
		}
		batch, err := d.Store.DispatchFacts(ctx, at, d.Mail != nil, cursor, limit)
		if err != nil || batch.Facts == 0 {
			return 0, err
		}
		cursor = batch.Cursor
		d.count(Tally{Scanned: int64(batch.Facts), Changed: int64(batch.Facts)})
		_, err = d.send(ctx, p, at)
		return batch.Facts, err
	}
	b.isolate = func() (bool, error) {
		id, err := d.Store.FirstFact(ctx, cursor)
		if err != nil || id == "" {
			return false, err
		}
		return d.tryFact(ctx, now, id)
	}
	done, isolated, early, err := b.pass(ctx, p)
	d.count(Tally{Scanned: int64(isolated), Failed: int64(isolated)})
	if err != nil || early {
		return done+isolated > 0, early, err
	}
	for begun := time.Now(); time.Since(begun) < sendStretch; {
		if p.mustLeave(ctx) {
			return true, true, nil
		}
		at, err := d.Store.Now(ctx)
		if err != nil {
			return false, false, err
		}
		n, err := d.send(ctx, p, at)
		if err != nil || n == 0 {
			return done+isolated > 0, false, err
		}
		done += n
	}
	return true, false, nil
}

// tryFact dispatches one fact alone and defers it where that fails by its own fault.
func (d *delivering) tryFact(ctx context.Context, now time.Time, id string) (deferred bool, err error) {
	one, err := d.Store.DispatchFact(ctx, now, d.Mail != nil, id)
	if err == nil {
		d.count(Tally{Scanned: int64(one.Facts), Changed: int64(one.Facts)})
		return false, nil
	}
	if !store.IsRowFault(err) {
		return false, err
	}
	return true, d.Store.DeferFact(ctx, id, plain(err))
}

func (d *delivering) retryDeferred(ctx context.Context, now time.Time) error {
	ids, err := d.Store.DeferredFacts(ctx, now, deferredFactsAtOnce)
	if err != nil {
		return err
	}
	for _, id := range ids {
		deferred, err := d.tryFact(ctx, now, id)
		if err != nil {
			return err
		}
		if deferred {
			d.count(Tally{Scanned: 1, Failed: 1})
		}
	}
	return nil
}

// send claims as many deliveries as are sent at once and sends them, outside any transaction. A slow mail server may take
// longer than a heartbeat's time-out, so the run says meanwhile that it is alive: each message has its own deadline.
func (d *delivering) send(ctx context.Context, p *pace, now time.Time) (int, error) {
	if d.Mail == nil {
		return 0, nil
	}
	claimed, err := d.Store.ClaimDeliveries(ctx, now, store.ChannelEmail, d.Owner, sendAtOnce, deliveryLease)
	if err != nil {
		return 0, err
	}
	// Not errgroup.WithContext: what is being sent is not cut off because another one could not be marked.
	var group errgroup.Group
	for _, one := range claimed {
		group.Go(func() error { return d.sendOne(ctx, now, one) })
	}
	sent := make(chan error, 1)
	go func() { sent <- group.Wait() }()
	alive := time.NewTicker(time.Second)
	defer alive.Stop()
	for {
		select {
		case err := <-sent:
			return len(claimed), err
		case <-alive.C:
			p.beat()
		}
	}
}

// sendOne sends one delivery and records what came of it. The error is the database's; what goes wrong with the message
// is written on its row.
func (d *delivering) sendOne(ctx context.Context, claimedAt time.Time, one store.Delivery) error {
	letter, err := d.Store.Letter(ctx, one, claimedAt, mail.SendTimeout)
	switch {
	case errors.Is(err, store.ErrConflict):
		d.count(Tally{Scanned: 1, Skipped: 1}) // it was held up so long that the lease is over or nearly so
		return nil
	case err != nil:
		return err
	case letter.Stale:
		d.count(Tally{Scanned: 1, Skipped: 1})
		return d.lost(ctx, d.Store.FinishDelivery(ctx, one, store.DeliverySuperseded, ""))
	}
	failpoint.Hit("mail_before_send")
	sent := d.write(ctx, letter, claimedAt)
	failpoint.Hit("mail_sent_before_mark")
	// The mark must not be lost because the run is being stopped: the message may be out.
	marking, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	if sent == nil {
		d.count(Tally{Scanned: 1, Changed: 1})
		if err := d.lost(ctx, d.Store.FinishDelivery(marking, one, store.DeliverySent, "")); err != nil {
			return err
		}
		return d.Store.ReviveChannel(marking, store.ChannelEmail)
	}
	d.count(Tally{Scanned: 1, Failed: 1})
	return d.lost(ctx, d.record(marking, claimedAt, one, sent))
}

// errPanic is a message that makes the program panic.
var errPanic = errors.New("writing the message panicked")

// write renders and sends a letter, in the words of the instant at. A panic is the message's fault and stops no other one.
func (d *delivering) write(ctx context.Context, letter store.Letter, at time.Time) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w with a %T", errPanic, v)
		}
	}()
	subject, text, html, err := mail.Render(kindOf(letter), letter.Locale, mail.Notice{
		UserName: letter.UserName, PlanName: letter.PlanName, TimeZone: letter.TimeZone,
		End: letter.Boundary, AccessUntil: letter.AccessUntil, Lifetime: subscription.IsForever(letter.AccessUntil),
		DaysLeft: subscription.DaysLeft(at, letter.Boundary, subscription.Zone(letter.TimeZone)),
	})
	if err != nil {
		return err
	}
	return d.Mail.Send(ctx, mail.Message{
		To: netmail.Address{Name: letter.UserName, Address: letter.Target}, Subject: subject, Text: text, HTML: html, MessageID: letter.MessageID,
	})
}

// kindOf is which mail tells of a letter. Whoever set the subscription to end is told that it will, and not asked to renew.
func kindOf(letter store.Letter) string {
	switch letter.Topic {
	case subscription.TopicAccessStarted:
		if letter.Kind == subscription.KindReturned {
			return mail.AccessReturned
		}
		return mail.AccessStarted
	case subscription.TopicAccessEnded:
		switch letter.Kind {
		case subscription.KindEnded:
			return mail.AccessEnded
		case subscription.KindCanceled:
			return mail.AccessCanceled
		}
		return mail.AccessExpired
	case subscription.TopicAccessEndingSoon:
		switch {
		case letter.SetToEnd:
			return mail.AccessEndingAsSet
		case letter.PastDue:
			return mail.AccessEndingUnpaid
		}
		return mail.AccessEnding
	case subscription.TopicPaymentFailed:
		return mail.PaymentFailed
	case subscription.TopicPaymentRecovered:
		return mail.PaymentRecovered
	}
	return string(letter.Topic) // of which there is no mail: the delivery is dead at once
}

// record writes on the row what a failed sending means for it.
func (d *delivering) record(ctx context.Context, claimedAt time.Time, one store.Delivery, failed error) error {
	text := failed.Error()
	switch {
	case errors.Is(failed, context.Canceled): // the run was stopped; nothing was delivered
		return d.Store.RetryDelivery(ctx, one, 0, text, true)
	case errors.Is(failed, mail.ErrUnavailable):
		// The whole channel waits. The message had no attempt: a day without a server must not end it.
		if err := d.Store.PauseChannel(ctx, store.ChannelEmail, claimedAt, text); err != nil {
			return err
		}
		return d.Store.RetryDelivery(ctx, one, 0, text, true)
	case errors.Is(failed, mail.ErrPermanent):
		return d.Store.FinishDelivery(ctx, one, store.DeliveryDead, text)
	case errors.Is(failed, mail.ErrAmbiguous):
		if strings.HasPrefix(one.LastError, unknownOutcome) {
			return d.Store.FinishDelivery(ctx, one, store.DeliveryDead, unknownOutcome+text)
		}
		return d.Store.RetryDelivery(ctx, one, deliveryPause(one.Attempts), unknownOutcome+text, false)
	case errors.Is(failed, errPanic) && one.Attempts >= panicAttempts, one.Attempts >= deliveryAttempts:
		return d.Store.FinishDelivery(ctx, one, store.DeliveryDead, text)
	default:
		return d.Store.RetryDelivery(ctx, one, deliveryPause(one.Attempts), text, false)
	}
}

// deliveryPause doubles with each attempt, with up to a quarter of jitter so that what failed together does not come
// back together.
func deliveryPause(attempts int) time.Duration {
	pause := firstDeliveryWait << min(max(attempts-1, 0), 12)
	return pause + rand.N(pause/4) //nolint:gosec // G404: jitter needs no secrecy.
}

// lost drops the error of a write whose claim somebody else has by now: that one decides what becomes of the row.
func (d *delivering) lost(ctx context.Context, err error) error {
	if errors.Is(err, store.ErrConflict) {
		activity.GetLogger(ctx).Warn("a delivery was taken over while it was being sent", "job", d.in.Job)
		return nil
	}
	return err
}

// askMore sets More when a run leaves early and something is due.
func (d *delivering) askMore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	next, now, err := d.Store.NextOutboxWork(ctx)
	d.tally.More = until(next, now) < 0
	return err
}

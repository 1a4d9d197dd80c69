// Package intake takes signed events of the payment provider: it stores each one, answers, and applies it at once in the
// same process. What it cannot finish is left for the job webhook-apply, which calls ApplyDue.
package intake

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/payment"
	"termkeeper/internal/settlement"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

const (
	// storers is how many groups are being stored at the same time. While they are, events gather for the next group.
	storers = 2
	// appliers work one group each, in turns: as a rule one works while events gather for its next group. Two at once make
	// smaller groups and want the same rows.
	appliers = 2
	// settlers work what must be asked for or looked up outside of the group's transaction, one group each: most of it waits for the
	// provider or for round trips to the database.
	settlers = 3
	// settleSize bounds the events of one of their groups: all of its questions share one time-out, and what has no answer by then is
	// put off as if the provider were silent.
	settleSize = 64
	// slowGroup is how long a group may take before the next applier has its turn: it waits for a row or for the database.
	slowGroup = 100 * time.Millisecond
	// groupSize bounds the events of one statement and of one transaction.
	groupSize = 256
	// backlog is how many stored events are kept waiting in memory. What comes on top is left to the job.
	backlog = 8192
	// storeTimeout is how long storing may take before the provider is told to come again.
	storeTimeout = 5 * time.Second
	// lease is how long events stay with the process that took them. It is longer than applying a group may take.
	lease = 30 * time.Second
	// applyTimeout bounds the transaction of one group.
	applyTimeout = 10 * time.Second
)

// ErrClosed is the answer once the process is stopping.
var ErrClosed = errors.New("the intake is closed")

// Settings are what applying depends on.
type Settings struct {
	Owner    string        // names this process in leases; unique among all that run
	Leeway   time.Duration // how long the news of a renewal may take
	Livemode bool          // events of the other mode are kept and ignored
	// Fetch asks the provider for a subscription by its id. It returns what the provider says and the second in which the
	// call began, by the provider's clock. Any error is no answer. nil when no key is configured.
	Fetch func(ctx context.Context, id string) (subscription.Provider, time.Time, error)
	// Money asks the provider for payments, refunds and disputes, and ends what was paid back. nil when no key is configured.
	Money *payment.Client
	// Orders settles what events tell of orders.
	Orders *settlement.Settler
	// OnResult is told what became of each event: its type and "processed", "quarantined", "failed", "retried" or "lost". May be nil.
	OnResult func(eventType, outcome string)
}

// Intake stores and applies events. Make one with New, end it with Drain.
type Intake struct {
	store    *store.Store
	settings Settings
	log      *zap.Logger

	receipts chan receipt
	queue    chan stored
	asking   chan asking   // events whose order only the provider can tell
	mapped   chan struct{} // holds one: something was learned that quarantined events may wait for
	parked   atomic.Int64  // when this process put an event about money into quarantine last, in ns since 1970; 0 when it did not
	turn     chan struct{} // holds one: whose turn it is to take a group from the queue
	stop     chan struct{} // closed: nothing more is taken
	full     chan struct{} // closed: nothing more will be stored
	storing  sync.WaitGroup
	applying sync.WaitGroup
	settling sync.WaitGroup
	healing  sync.WaitGroup
	working  context.Context
	cut      context.CancelFunc
}

type receipt struct {
	stored
	answer chan outcome // holds one, so that nobody waits for a caller who has left
}

// stored is an event in the database that is to be applied.
type stored struct {
	event store.WebhookEvent
	// envelope is what was read of the event when it came in, nil when that was in another process or before.
	envelope *payment.Event
}

type outcome struct {
	duplicate bool
	err       error
}

// New starts the goroutines that store and apply. The pool behind the store is best the intake's own.
func New(s *store.Store, settings Settings, log *zap.Logger) *Intake {
	in := &Intake{
		store: s, settings: settings, log: log, receipts: make(chan receipt, 4*groupSize), stop: make(chan struct{}), full: make(chan struct{}),
		queue: make(chan stored, backlog), turn: make(chan struct{}, 1), asking: make(chan asking, backlog), mapped: make(chan struct{}, 1),
	}
	in.working, in.cut = context.WithCancel(context.Background())
	for range storers {
		in.storing.Go(in.storeGroups)
	}
	for range appliers {
		in.applying.Go(in.applyGroups)
	}
	for range settlers {
		in.settling.Go(in.settleGroups)
	}
	in.healing.Go(in.heal)
	return in
}

// Receive stores a verified event. When it returns without an error the event is committed, by this call or an earlier
// one (duplicate), and will be applied.
func (in *Intake) Receive(ctx context.Context, event payment.Event, body []byte) (duplicate bool, err error) {
	r := receipt{answer: make(chan outcome, 1), stored: stored{envelope: &event, event: store.WebhookEvent{
		ID: store.NewID(), Provider: "stripe", ExternalID: event.ID, Type: event.Type, APIVersion: event.APIVersion, Livemode: event.Livemode,
		ObjectID: event.ObjectID, Created: event.Created, Ignored: in.ignored(event), Payload: body,
	}}}
	select {
	case in.receipts <- r:
	case <-in.stop:
		return false, ErrClosed
	case <-ctx.Done():
		return false, ctx.Err()
	}
	select {
	case s := <-r.answer:
		return s.duplicate, s.err
	case <-ctx.Done():
		return false, ctx.Err()
	case <-in.full:
	}
	select {
	case s := <-r.answer:
		return s.duplicate, s.err
	default:
		return false, ErrClosed // it came in between the last look and the stop
	}
}

// ignored says why an event is only kept, or "" when it is to be applied.
func (in *Intake) ignored(e payment.Event) string {
	switch {
	case e.IsThin():
		return "thin_event"
	case e.Account != "":
		return "other_account"
	case e.Livemode != in.settings.Livemode:
		return "other_livemode"
	case !applied(e.Type):
		return "unused_type"
	case e.Data == nil:
		return "no_object"
	}
	return ""
}

// applied reports whether events of this type change anything here.
func applied(eventType string) bool {
	switch eventType {
	case eventCreated, eventUpdated, eventDeleted, eventCheckoutCompleted, eventInvoicePaid, eventInvoiceSucceeded, eventInvoiceFailed, eventCustomerDeleted,
		eventCheckoutExpired, eventCheckoutAsyncPaid, eventCheckoutAsyncFailed,
		eventPaused, eventResumed, eventTrialWillEnd, eventInvoicePaymentPaid, eventPaymentSucceeded,
		eventChargeRefunded, eventRefundCreated, eventRefundUpdated, eventRefundFailed, eventChargeRefundUpdated,
		eventDisputeCreated, eventDisputeUpdated, eventDisputeClosed, eventDisputeWithdrawn, eventDisputeReinstated:
		return true
	}
	return false
}

const (
	eventCreated = "customer.subscription.created"
	eventUpdated = "customer.subscription.updated"
	eventDeleted = "customer.subscription.deleted"

	eventPaused       = "customer.subscription.paused"
	eventResumed      = "customer.subscription.resumed"
	eventTrialWillEnd = "customer.subscription.trial_will_end"

	eventCheckoutCompleted = "checkout.session.completed"
	eventInvoicePaid       = "invoice.paid"
	eventInvoiceSucceeded  = "invoice.payment_succeeded"
	eventInvoiceFailed     = "invoice.payment_failed"
	eventCustomerDeleted   = "customer.deleted"

	eventInvoicePaymentPaid = "invoice_payment.paid"
	eventPaymentSucceeded   = "payment_intent.succeeded"

	eventChargeRefunded      = "charge.refunded"
	eventRefundCreated       = "refund.created"
	eventRefundUpdated       = "refund.updated"
	eventRefundFailed        = "refund.failed"
	eventChargeRefundUpdated = "charge.refund.updated"

	eventDisputeCreated    = "charge.dispute.created"
	eventDisputeUpdated    = "charge.dispute.updated"
	eventDisputeClosed     = "charge.dispute.closed"
	eventDisputeWithdrawn  = "charge.dispute.funds_withdrawn"
	eventDisputeReinstated = "charge.dispute.funds_reinstated"
)

// Drain stops taking events, applies what was taken, and gives the rest back when ctx ends first. Receive must not be
// called any more by then, or it answers ErrClosed.
func (in *Intake) Drain(ctx context.Context) error {
	close(in.stop)
	in.storing.Wait()
	close(in.full)
	close(in.queue)
	done := make(chan struct{})
	go func() {
		in.healing.Wait()
		in.applying.Wait()
		close(in.asking)
		in.settling.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	in.cut()
	<-done
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return in.store.ReleaseWebhookEvents(release, in.settings.Owner)
}

func (in *Intake) storeGroups() {
	for {
		select {
		case first := <-in.receipts:
			in.storeGroup(waiting(first, in.receipts, groupSize))
		case <-in.stop:
			select {
			case first := <-in.receipts: // it was taken in before the stop
				in.storeGroup(waiting(first, in.receipts, groupSize))
			default:
				return
			}
		}
	}
}

// waiting takes what has gathered behind the first one, most in all. It waits for nothing but what is ready to run.
func waiting[T any](first T, from <-chan T, most int) []T {
	runtime.Gosched()
	group := []T{first}
	for len(group) < most {
		select {
		case next, open := <-from:
			if !open {
				return group
			}
			group = append(group, next)
		default:
			return group
		}
	}
	return group
}

func (in *Intake) storeGroup(group []receipt) {
	ctx, cancel := context.WithTimeout(in.working, storeTimeout)
	defer cancel()
	events := make([]store.WebhookEvent, len(group))
	for i, r := range group {
		events[i] = r.event
	}
	failpoint.Hit("intake_before_insert")
	fresh, err := in.store.InsertWebhookEvents(ctx, events, in.settings.Owner, lease)
	failpoint.Hit("intake_after_insert")
	for i, r := range group {
		isNew := fresh[r.event.ID]
		if err == nil && isNew && events[i].Ignored == "" {
			in.enqueue(r.stored)
		}
		r.answer <- outcome{duplicate: !isNew, err: err}
	}
}

// enqueue hands a stored event to the appliers. When too much is waiting, the event's lease runs out and the job takes it.
func (in *Intake) enqueue(e stored) {
	e.event.Attempts = 1
	select {
	case in.queue <- e:
	default:
		in.log.Warn("too much waits to be applied, event left to the job", zap.String("event_id", e.event.ExternalID))
	}
}

// Replay applies a stored event once more from the start, whatever became of it, and waits for the outcome of this
// attempt. store.ErrNotFound when there is none, store.ErrConflict while somebody is applying it.
func (in *Intake) Replay(ctx context.Context, id string) error {
	event, err := in.store.LeaseWebhookEvent(ctx, id, in.settings.Owner, lease)
	if err != nil {
		return err
	}
	_, err = in.applyAndSettle(ctx, []stored{{event: event}})
	return err
}

// cutText keeps what is stored of an error short and free of bytes that PostgreSQL's text refuses.
func cutText(s string) string {
	const most = 500
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

package intake

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/payment"
	"termkeeper/internal/settlement"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

const (
	// MaxAttempts is how often an event is tried before a person must look at it.
	MaxAttempts = 12
	// firstPause is the wait after the first failed attempt. It doubles with each, with up to a quarter of jitter: twelve
	// attempts span about six hours. An outage of the database itself uses no attempts up.
	firstPause = 10 * time.Second
)

// Tally counts what a call of ApplyDue did. More says that events are still due.
type Tally struct {
	Scanned, Changed, Skipped, Failed int
	More                              bool
}

// applyGroups takes groups in turns until the queue is closed and empty.
func (in *Intake) applyGroups() {
	for {
		in.turn <- struct{}{}
		first, open := <-in.queue
		if !open {
			<-in.turn
			return
		}
		group := waiting(first, in.queue, groupSize)
		next := sync.OnceFunc(func() { <-in.turn })
		slow := time.AfterFunc(slowGroup, next)
		in.applyUntilDone(group)
		slow.Stop()
		next()
	}
}

// applyUntilDone stays with a group while the database is away, as long as the lease holds: Temporal may be down too,
// and then nobody else would come.
func (in *Intake) applyUntilDone(group []stored) {
	giveUp := time.Now().Add(lease - applyTimeout)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		_, asks, err := in.apply(in.working, group)
		in.handOver(asks)
		if err == nil || time.Now().After(giveUp) {
			return
		}
		select {
		case <-time.After(pause):
		case <-in.working.Done():
			return
		}
	}
}

// ApplyDue leases due events and applies them: those whose mapping exists by now, those whose pause is over, and those
// that a process left behind. At most limit events are taken, and at most one group.
func (in *Intake) ApplyDue(ctx context.Context, limit int) (Tally, error) {
	var t Tally
	limit = min(limit, groupSize)
	if _, err := in.store.ReleaseMappedWebhookEvents(ctx, limit); err != nil {
		return t, err
	}
	events, err := in.store.LeaseWebhookEvents(ctx, limit, in.settings.Owner, lease)
	if err != nil {
		return t, err
	}
	group := make([]stored, len(events))
	for i, event := range events {
		group[i].event = event
	}
	if t, err = in.applyAndSettle(ctx, group); err != nil {
		return t, err
	}
	t.Scanned = len(group)
	t.More, err = in.store.WebhookEventsDue(ctx)
	return t, err
}

// read is a stored event that was understood. Which of the facts it tells follows from its kind.
type read struct {
	event    store.WebhookEvent
	kind     string
	news     store.SubscriptionNews
	invoice  payment.Invoice
	checkout payment.Checkout
	customer string               // id of a deleted one
	money    money                // that moved
	evidence *settlement.Evidence // of an order; nil where it tells of none
	created  time.Time            // zero when it does not say
}

// applyAndSettle applies a group with all that has to be asked for it.
func (in *Intake) applyAndSettle(ctx context.Context, group []stored) (Tally, error) {
	t, asks, err := in.apply(ctx, group)
	if err != nil {
		return t, err
	}
	settled, err := in.settle(ctx, asks)
	return t.plus(settled), err
}

func (t Tally) plus(o Tally) Tally {
	return Tally{
		Scanned: t.Scanned + o.Scanned, Changed: t.Changed + o.Changed, Skipped: t.Skipped + o.Skipped, Failed: t.Failed + o.Failed,
		More: t.More || o.More,
	}
}

// apply works a group together; if that fails, each by itself, so that one poison event stops nobody. What needs the
// provider's answer is returned, still leased and undone. An error means that the database could not be asked and that what is left of
// the group is leased and undone.
func (in *Intake) apply(ctx context.Context, group []stored) (Tally, []asking, error) {
	var t Tally
	var asks []asking
	var ready []read
	for _, one := range group {
		e := one.event
		if e.Attempts > MaxAttempts {
			// It was leased as often as it may be and never came to an end: it kills its processes.
			if err := in.fail(ctx, e, "", errors.New("no attempt came to an end")); err != nil {
				return t, asks, err
			}
			t.Failed++
			continue
		}
		r, ignored, err := in.readEvent(one)
		switch {
		case err != nil:
			if err := in.fail(ctx, e, r.kind, err); err != nil {
				return t, asks, err
			}
			t.Failed++
		case ignored != "":
			if err := in.store.IgnoreWebhookEvent(ctx, e.ID, in.settings.Owner, ignored); err != nil {
				return t, asks, err
			}
			t.Skipped++
		case r.news.EventID != "":
			ready = append(ready, r)
		default:
			asks = append(asks, asking{read: r})
		}
	}
	if len(ready) == 0 {
		return t, asks, nil
	}
	results, err := in.applyNews(ctx, ready)
	if err == nil {
		return t, append(asks, in.count(ready, results, &t)...), nil
	}
	if unreachable(err) {
		return t, asks, err
	}
	for _, r := range ready {
		results, err := in.applyNews(ctx, []read{r})
		switch {
		case err == nil:
			asks = append(asks, in.count([]read{r}, results, &t)...)
		case unreachable(err):
			return t, asks, err
		default:
			if err := in.fail(ctx, r.event, r.kind, err); err != nil {
				return t, asks, err
			}
			t.Failed++
		}
	}
	return t, asks, nil
}

// readEvent turns a stored event into news, or says why it is only kept. What was stored was verified then; it is not
// verified again.
func (in *Intake) readEvent(s stored) (r read, ignored string, err error) {
	r.event = s.event
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("reading the event panicked: %v", p)
		}
	}()
	envelope := s.envelope
	if envelope == nil {
		parsed, err := payment.ParseEvent(s.event.Payload)
		if err != nil {
			return r, "", err
		}
		envelope = &parsed
	}
	r.kind = envelope.Type
	if ignored := in.ignored(*envelope); ignored != "" {
		return r, ignored, nil
	}
	ignored, err = r.about(*envelope)
	return r, ignored, err
}

// about reads what the event tells of, by its type.
func (r *read) about(e payment.Event) (ignored string, err error) {
	r.created = e.Created
	if r.evidence = orderEvidence(e); r.evidence != nil {
		return "", nil
	}
	switch e.Type {
	case eventCheckoutExpired, eventCheckoutAsyncPaid, eventCheckoutAsyncFailed:
		ignored = "not_an_order"
	case eventCheckoutCompleted:
		r.checkout, err = payment.ReadCheckout(e.Data)
		switch {
		case err != nil:
		case r.checkout.SubscriptionID == "":
			ignored = "not_a_subscription"
		case r.checkout.UserID == "":
			ignored = "names_no_user"
		}
	case eventInvoicePaid, eventInvoiceSucceeded, eventInvoiceFailed:
		if r.invoice, err = payment.ReadInvoice(e.Data); err == nil && r.invoice.SubscriptionID == "" {
			ignored = "not_a_subscription"
		}
	case eventCustomerDeleted:
		if r.customer = e.ObjectID; r.customer == "" {
			err = payment.ErrMalformed
		}
	case eventInvoicePaymentPaid, eventPaymentSucceeded:
		ignored, err = r.aboutPayment(e)
	case eventChargeRefunded:
		r.money.charge, err = payment.ReadCharge(e.Data)
		if c := r.money.charge; err == nil && c.InvoiceID == "" && c.OrderID == "" && e.APIVersion < basil {
			ignored = "not_an_invoice"
		}
	case eventRefundCreated, eventRefundUpdated, eventRefundFailed, eventChargeRefundUpdated:
		r.money.refund, err = payment.ReadRefund(e.Data)
		if id, _ := r.money.of(); err == nil && id == "" {
			ignored = "names_no_payment"
		}
	case eventDisputeCreated, eventDisputeUpdated, eventDisputeClosed, eventDisputeWithdrawn, eventDisputeReinstated:
		r.money.dispute, err = payment.ReadDispute(e.Data)
		if id, _ := r.money.of(); err == nil && id == "" {
			ignored = "names_no_payment"
		}
	default:
		r.news.EventID = r.event.ID
		r.news.Provider, r.news.News, err = newsOf(e)
	}
	return ignored, err
}

func newsOf(e payment.Event) (subscription.Provider, subscription.News, error) {
	provider, err := payment.Subscription(e.Data)
	return provider, subscription.News{Created: e.Created, Deleted: e.Type == eventDeleted}, err
}

// readStored reads an event about a subscription that was stored before.
func readStored(payload []byte) (subscription.Provider, subscription.News, error) {
	e, err := payment.ParseEvent(payload)
	if err != nil {
		return subscription.Provider{}, subscription.News{}, err
	}
	return newsOf(e)
}

func (in *Intake) applyNews(ctx context.Context, group []read) (results []store.NewsResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			in.log.Error("applying events panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("applying panicked: %v", p)
		}
	}()
	news := make([]store.SubscriptionNews, len(group))
	for i, r := range group {
		news[i] = r.news
	}
	failpoint.Hit("apply_before")
	results, err = in.store.ApplySubscriptionNews(ctx, news, in.settings.Owner, in.settings.Leeway)
	failpoint.Hit("apply_after_commit")
	in.healMoney() // what was in quarantine may have waited for the row of a subscription
	return results, err
}

// statementCanceled is the SQLSTATE of a statement that ran into its time-out: the database is there.
const statementCanceled = "57014"

// unreachable reports whether the database did not answer, as against everything else that can go wrong: an answer that
// something is wrong, and a fault of this program. What is not known to be an outage is the event's own fault. The other
// way round one such event would hold up all others, because nobody goes on while the database is away.
func unreachable(err error) bool {
	var answered *pgconn.PgError
	if !errors.As(err, &answered) {
		return store.Unavailable(err) || errors.Is(err, context.Canceled)
	}
	if len(answered.Code) < 2 {
		return false
	}
	switch class := answered.Code[:2]; class {
	case "08", "53", "57", "58": // connection, resources, operator intervention (shutdown), system error
		return answered.Code != statementCanceled
	}
	return false
}

// fail records a failed attempt. What cannot be read now cannot be read later, so it is given up at once. The error means that not even
// that was possible.
func (in *Intake) fail(ctx context.Context, e store.WebhookEvent, kind string, cause error) error {
	in.log.Warn("webhook event could not be applied", zap.String("event_id", e.ExternalID), zap.Int("attempts", e.Attempts), zap.Error(cause))
	most := MaxAttempts
	if errors.Is(cause, payment.ErrMalformed) {
		most = 1
	}
	if err := in.store.FailWebhookEvent(ctx, e.ID, in.settings.Owner, pause(e.Attempts), most, cutText(cause.Error())); err != nil {
		return err
	}
	outcome := "retried"
	if e.Attempts >= most {
		outcome = "failed"
	}
	in.tell(kind, outcome)
	return nil
}

// pause doubles with each attempt, with jitter so that what failed together does not come back together.
func pause(attempts int) time.Duration {
	p := firstPause << min(max(attempts-1, 0), MaxAttempts)
	return p + rand.N(p/4) //nolint:gosec // jitter needs no secret
}

// count adds results to the tally and returns those events that wait for the provider's answer.
func (in *Intake) count(group []read, results []store.NewsResult, t *Tally) (asks []asking) {
	events := make(map[string]read, len(group))
	for _, r := range group {
		events[r.event.ID] = r
	}
	for _, r := range results {
		kind := events[r.EventID].kind
		switch {
		case r.Asks:
			asks = append(asks, asking{read: events[r.EventID], version: r.Version})
		case r.Lost:
			t.Skipped++
			in.tell(kind, "lost")
		case r.Skip.Quarantine():
			t.Skipped++
			in.log.Warn("webhook event quarantined", zap.String("row_id", r.EventID), zap.String("reason", string(r.Skip)))
			in.tell(kind, "quarantined")
		case r.Skip != subscription.SkipNone:
			t.Skipped++
			in.tell(kind, "processed")
		default:
			t.Changed++
			in.tell(kind, "processed")
		}
	}
	return asks
}

func (in *Intake) tell(kind, outcome string) {
	if in.settings.OnResult != nil {
		in.settings.OnResult(kind, outcome)
	}
}

package intake

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/store"
)

// asking is an event that waits for the provider's answer, or for what else must be looked up outside a transaction.
type asking struct {
	read
	version int64 // of its subscription's row when it was left; 0 when there was none
}

// errNoAnswer is recorded on events that wait for the provider.
var errNoAnswer = errors.New("the provider did not answer")

// handOver gives events to those who ask, so that a provider that hangs holds up nobody who needs no answer. When
// too many wait, their leases run out and the job takes them.
func (in *Intake) handOver(asks []asking) {
	for _, a := range asks {
		select {
		case in.asking <- a:
		default:
			in.log.Warn("too much waits for the provider, event left to the job", zap.String("event_id", a.event.ExternalID))
		}
	}
}

func (in *Intake) settleGroups() {
	for first := range in.asking {
		in.settleUntilDone(waiting(first, in.asking, settleSize))
	}
}

// settleUntilDone stays with a group while the database is away, as long as the lease holds.
func (in *Intake) settleUntilDone(group []asking) {
	giveUp := time.Now().Add(lease - applyTimeout - askTimeout)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		_, err := in.settle(in.working, group)
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

// settling is one round of questions and answers.
type settling struct {
	in        *Intake
	questions map[string]*question // by subscription
	order     []string
	rows      map[string]int64 // versions of the rows of what else is asked for
	answers   map[string]answer
	tally     Tally
	// moneyUntil is when questions about money end that the group puts to the provider; silent: it did not answer one of them.
	moneyUntil time.Time
	silent     bool
}

// question is a subscription with its events that ask.
type question struct {
	version int64
	events  []read
}

// settle finds out what events wait for and applies it. Each subscription is asked for once. An error means that the
// database could not be asked; what is undone is still leased.
func (in *Intake) settle(ctx context.Context, list []asking) (Tally, error) {
	s := settling{in: in, questions: map[string]*question{}, rows: map[string]int64{}}
	var others, orders []read
	for _, a := range list {
		if a.evidence != nil {
			orders = append(orders, a.read)
			continue
		}
		if a.news.EventID == "" {
			others = append(others, a.read)
			continue
		}
		id := a.news.Provider.ExternalID
		q := s.questions[id]
		if q == nil {
			q = &question{}
			s.questions[id], s.order = q, append(s.order, id)
		}
		q.version, q.events = max(q.version, a.version), append(q.events, a.read)
	}
	steps := make([]func(context.Context) error, 0, len(others))
	for _, r := range others {
		step, err := s.prepare(ctx, r)
		if err != nil {
			if err := s.failed(ctx, r, err); err != nil {
				return s.tally, err
			}
			continue
		}
		steps = append(steps, func(ctx context.Context) error {
			err := s.safely(ctx, step)
			if err != nil {
				return s.failed(ctx, r, err)
			}
			return nil
		})
	}
	s.answers = in.ask(ctx, s.asked())
	for _, id := range s.order {
		if err := s.question(ctx, id, *s.questions[id]); err != nil {
			return s.tally, err
		}
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return s.tally, err
		}
	}
	return s.tally, s.takeOrders(ctx, orders)
}

// asked are the subscriptions to ask the provider for.
func (s *settling) asked() []string {
	ids := append([]string(nil), s.order...)
	for id := range s.rows {
		if s.questions[id] == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// prepare looks up what the step that works an event must ask for, and returns the step.
func (s *settling) prepare(ctx context.Context, r read) (step func(context.Context) error, err error) {
	switch r.kind {
	case eventCheckoutCompleted:
		return s.checkout(ctx, r)
	case eventCustomerDeleted:
		return s.customer(ctx, r)
	case eventInvoicePaymentPaid, eventPaymentSucceeded:
		return s.invoicePayment(ctx, r)
	case eventChargeRefunded, eventRefundCreated, eventRefundUpdated, eventRefundFailed, eventChargeRefundUpdated:
		return func(ctx context.Context) error { return s.refund(ctx, r) }, nil
	case eventDisputeCreated, eventDisputeUpdated, eventDisputeClosed, eventDisputeWithdrawn, eventDisputeReinstated:
		return func(ctx context.Context) error { return s.dispute(ctx, r) }, nil
	default:
		return s.invoice(ctx, r)
	}
}

// safely runs one step, whose panic is an error like any other.
func (s *settling) safely(ctx context.Context, step func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			s.in.log.Error("settling events panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("settling panicked: %v", p)
		}
	}()
	return step(ctx)
}

// failed records what went wrong with an event. The error is the database's, when it cannot be asked.
func (s *settling) failed(ctx context.Context, r read, cause error) error {
	if unreachable(cause) {
		return cause
	}
	s.tally.Failed++
	return s.in.fail(ctx, r.event, r.kind, cause)
}

// question settles a subscription. When its row has moved since the question, the answer may be older than the row, so
// it is asked again.
func (s *settling) question(ctx context.Context, id string, q question) error {
	const tries = 4
	for try := 1; ; try++ {
		var results []store.NewsResult
		err := s.safely(ctx, func(ctx context.Context) error {
			var err error
			results, err = s.in.store.SettleSubscription(ctx, s.put(id, q), s.in.settings.Owner, s.in.settings.Leeway, readStored)
			failpoint.Hit("apply_after_commit")
			return err
		})
		switch {
		case err == nil:
			return s.finished(ctx, q, results)
		case errors.Is(err, store.ErrConflict) && try < tries:
			rows, err := s.in.store.ProviderSubscriptions(ctx, []string{id})
			if err != nil {
				return err
			}
			q.version = rows[id].Version
			if s.answers[id].truth != nil {
				s.answers[id] = s.in.ask(ctx, []string{id})[id]
			}
			continue
		}
		for _, r := range q.events {
			if err := s.failed(ctx, r, err); err != nil {
				return err
			}
		}
		return nil
	}
}

// put is the question as the store takes it. That there is no such subscription proves its deletion only to an event that says the same.
func (s *settling) put(id string, q question) store.Question {
	answer := s.answers[id]
	put := store.Question{ExternalID: id, Version: q.version, Answer: answer.truth, Tried: s.in.settings.Fetch != nil}
	for _, r := range q.events {
		put.News = append(put.News, r.news)
		if r.news.News.Deleted && answer.missing {
			gone := store.Truth{Provider: r.news.Provider, Asked: r.created, Began: answer.began}
			gone.Provider.Status = "canceled"
			put.Answer = &gone
		}
	}
	return put
}

// finished counts results, and gives back what cannot be applied without an answer.
func (s *settling) finished(ctx context.Context, q question, results []store.NewsResult) error {
	done := results[:0]
	for _, r := range results {
		if !r.Retry {
			done = append(done, r)
			continue
		}
		for _, e := range q.events {
			if e.event.ID == r.EventID {
				if err := s.failed(ctx, e, fmt.Errorf("%s: %w", r.Skip, errNoAnswer)); err != nil {
					return err
				}
			}
		}
	}
	s.in.count(q.events, done, &s.tally)
	return nil
}

// done marks an event whose effect was written. reason says why it had none.
func (s *settling) done(ctx context.Context, r read, reason string) error {
	if err := s.in.store.ProcessWebhookEvent(ctx, r.event.ID, s.in.settings.Owner, reason); err != nil {
		return err
	}
	if reason == "" {
		s.tally.Changed++
	} else {
		s.tally.Skipped++
	}
	s.in.tell(r.kind, "processed")
	return nil
}

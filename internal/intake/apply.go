package intake

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/payment"
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
		group := waiting(first, in.queue)
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
		_, err := in.apply(in.working, group)
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
// that a process left behind. At most limit events are taken.
func (in *Intake) ApplyDue(ctx context.Context, limit int) (Tally, error) {
	var t Tally
	if _, err := in.store.ReleaseMappedWebhookEvents(ctx, limit); err != nil {
		return t, err
	}
	events, err := in.store.LeaseWebhookEvents(ctx, limit, in.settings.Owner, lease)
	if err != nil {
		return t, err
	}
	for events := range slices.Chunk(events, groupSize) {
		group := make([]stored, len(events))
		for i, event := range events {
			group[i].event = event
		}
		done, err := in.apply(ctx, group)
		t.Scanned += len(group)
		t.Changed += done.Changed
		t.Skipped += done.Skipped
		t.Failed += done.Failed
		if err != nil {
			return t, err
		}
	}
	t.More, err = in.store.WebhookEventsDue(ctx)
	return t, err
}

// read is a stored event that was understood.
type read struct {
	event store.WebhookEvent
	kind  string
	news  store.SubscriptionNews
}

// apply works a group together; if that fails, each by itself, so that one poison event stops nobody. An error means
// that the database could not be asked and that the group is still leased and undone.
func (in *Intake) apply(ctx context.Context, group []stored) (Tally, error) {
	var t Tally
	var ready []read
	for _, one := range group {
		e := one.event
		if e.Attempts > MaxAttempts {
			// It was leased as often as it may be and never came to an end: it kills its processes.
			if err := in.fail(ctx, e, "", errors.New("no attempt came to an end")); err != nil {
				return t, err
			}
			t.Failed++
			continue
		}
		r, ignored, err := in.readEvent(one)
		switch {
		case err != nil:
			if err := in.fail(ctx, e, r.kind, err); err != nil {
				return t, err
			}
			t.Failed++
		case ignored != "":
			if err := in.store.IgnoreWebhookEvent(ctx, e.ID, in.settings.Owner, ignored); err != nil {
				return t, err
			}
			t.Skipped++
		default:
			ready = append(ready, r)
		}
	}
	if len(ready) == 0 {
		return t, nil
	}
	results, err := in.applyNews(ctx, ready)
	if err == nil {
		in.count(ready, results, &t)
		return t, nil
	}
	if unreachable(err) {
		return t, err
	}
	for _, r := range ready {
		results, err := in.applyNews(ctx, []read{r})
		switch {
		case err == nil:
			in.count([]read{r}, results, &t)
		case unreachable(err):
			return t, err
		default:
			if err := in.fail(ctx, r.event, r.kind, err); err != nil {
				return t, err
			}
			t.Failed++
		}
	}
	return t, nil
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
	provider, err := payment.Subscription(envelope.Data)
	if err != nil {
		return r, "", err
	}
	r.news = store.SubscriptionNews{EventID: s.event.ID, Provider: provider, News: subscription.News{
		Created: envelope.Created, Deleted: envelope.Type == eventDeleted,
	}}
	return r, "", nil
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

// fail records a failed attempt. Its error means that not even that was possible.
func (in *Intake) fail(ctx context.Context, e store.WebhookEvent, kind string, cause error) error {
	in.log.Warn("webhook event could not be applied", zap.String("event_id", e.ExternalID), zap.Int("attempts", e.Attempts), zap.Error(cause))
	if err := in.store.FailWebhookEvent(ctx, e.ID, in.settings.Owner, pause(e.Attempts), MaxAttempts, cutText(cause.Error())); err != nil {
		return err
	}
	outcome := "retried"
	if e.Attempts >= MaxAttempts {
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

func (in *Intake) count(group []read, results []store.NewsResult, t *Tally) {
	kinds := make(map[string]string, len(group))
	for _, r := range group {
		kinds[r.event.ID] = r.kind
	}
	for _, r := range results {
		switch {
		case r.Lost:
			t.Skipped++
			in.tell(kinds[r.EventID], "lost")
		case r.Skip.Quarantine():
			t.Skipped++
			in.log.Warn("webhook event quarantined", zap.String("row_id", r.EventID), zap.String("reason", string(r.Skip)))
			in.tell(kinds[r.EventID], "quarantined")
		case r.Skip != subscription.SkipNone:
			t.Skipped++
			in.tell(kinds[r.EventID], "processed")
		default:
			t.Changed++
			in.tell(kinds[r.EventID], "processed")
		}
	}
}

func (in *Intake) tell(kind, outcome string) {
	if in.settings.OnResult != nil {
		in.settings.OnResult(kind, outcome)
	}
}

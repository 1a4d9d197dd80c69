package activities

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	netmail "net/mail"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"termkeeper/internal/failpoint"
	"termkeeper/internal/mail"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

const (
	// mailsAtOnce bounds the mails that are being sent at the same time; as many are claimed at once.
	mailsAtOnce = 16
	// deliveryLease is longer than the second look, the sending and the mark together can take.
	deliveryLease = 2*mail.SendTimeout + 15*time.Second
	// deliveryAttempts is how often a message is tried that the server puts off. With the pauses below they span half a day.
	deliveryAttempts  = 12
	firstDeliveryWait = 10 * time.Second
	// panicAttempts is how often a message is tried that makes the program panic.
	panicAttempts = 3
)

// unknownOutcome begins the last error of a delivery that may have arrived.
const unknownOutcome = "it may have arrived: "

// launchMails claims as many mails as are sent at once and sends them beside the loop, outside any transaction. The next ones are
// claimed when all of them have landed: while the server is down one is claimed at a time.
func (d *delivering) launchMails(ctx context.Context, now time.Time) (int, error) {
	claimed, err := d.Store.ClaimMails(ctx, now, d.Owner, mailsAtOnce, deliveryLease)
	if err != nil || len(claimed) == 0 {
		return 0, err
	}
	d.mu.Lock()
	d.mailing = true
	d.mu.Unlock()
	go func() {
		// Not errgroup.WithContext: what is being sent is not cut off because another one could not be marked.
		var group errgroup.Group
		for _, one := range claimed {
			group.Go(func() error { return d.sendOne(ctx, now, one) })
		}
		err := group.Wait()
		d.done(err, func() { d.mailing = false })
	}()
	return len(claimed), nil
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
	case subscription.TopicAccessChanged: // dispatch makes no mail of it
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

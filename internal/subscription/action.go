package subscription

import (
	"errors"
	"fmt"
	"time"
)

// ErrConflict is the kind of every impossible transition. The text of the wrapping error tells a person why.
var ErrConflict = errors.New("not possible now")

// ErrProviderOwned says that only the provider can do this to a subscription of its own.
var ErrProviderOwned = errors.New("the payment provider owns this subscription")

func conflict(why string) error { return fmt.Errorf("%w: %s", ErrConflict, why) }

// maxInstant is the last instant that a term may have.
var maxInstant = Forever.Add(-time.Microsecond)

func (s Subscription) changeable() error {
	if s.Status == Canceled {
		return conflict("the subscription is canceled; make a new one")
	}
	return nil
}

// Cancelable says what speaks against ending the subscription at once, or against letting it run out. It is ErrConflict.
func (s Subscription) Cancelable(atPeriodEnd bool) error {
	if err := s.changeable(); err != nil || !atPeriodEnd {
		return err
	}
	switch {
	case s.Status == Expired:
		return conflict("the subscription has already ended")
	case IsForever(s.ExpiresAt):
		return conflict("a lifetime subscription has no period end")
	case s.CancelAtPeriodEnd:
		return conflict("the subscription is already set to end")
	}
	return nil
}

// Cancel ends our subscription: at once, or by letting it run out.
func (s Subscription) Cancel(at time.Time, atPeriodEnd bool) (Subscription, []Change, error) {
	if err := s.Cancelable(atPeriodEnd); err != nil {
		return s, nil, err
	}
	if !s.Ours() {
		return s, nil, ErrProviderOwned
	}
	if atPeriodEnd {
		s.CancelAtPeriodEnd = true
		s.LeewayUntil = time.Time{}
		return s, []Change{{EventCanceled, s.AccessUntil()}}, nil
	}
	s.Status, s.ExpiredAt = Canceled, time.Time{}
	if at.Before(s.ExpiresAt) {
		s.ExpiresAt = at
	}
	return s, []Change{{EventCanceled, at}}, nil
}

// Uncancelable says what speaks against taking the setting to end back. It is ErrConflict.
func (s Subscription) Uncancelable() error {
	if err := s.changeable(); err != nil {
		return err
	}
	switch {
	case s.Status == Expired:
		return conflict("the subscription has already ended")
	case !s.CancelAtPeriodEnd:
		return conflict("the subscription is not set to end")
	}
	return nil
}

// Uncancel takes the setting to end back.
func (s Subscription) Uncancel() (Subscription, []Change, error) {
	if !s.Ours() {
		return s, nil, ErrProviderOwned
	}
	if err := s.Uncancelable(); err != nil {
		return s, nil, err
	}
	s.CancelAtPeriodEnd = false
	return s, []Change{{EventUncanceled, s.AccessUntil()}}, nil
}

// Pause holds the subscription: it gives no access until it is resumed, and goes on ending on its date.
func (s Subscription) Pause(at time.Time) (Subscription, []Change, error) {
	if err := s.changeable(); err != nil {
		return s, nil, err
	}
	switch {
	case s.Status == Expired:
		return s, nil, conflict("the subscription has already ended")
	case s.Held():
		return s, nil, conflict("the subscription is already paused")
	}
	s.HeldAt = at
	return s, []Change{{EventPaused, s.AccessUntil()}}, nil
}

// Resume lifts the hold, and takes one of ours out of the status paused, which it can be made with; out of a provider's
// own pause only the provider does. With addPausedTime the time that was left when the hold began is left again: ours moves its
// end, one of a provider gets it as CompUntil, because its term is not ours to move. That brings one back that ended
// while it was held.
func (s Subscription) Resume(at time.Time, addPausedTime bool) (Subscription, []Change, error) {
	if err := s.changeable(); err != nil {
		return s, nil, err
	}
	madePaused := s.Ours() && s.Status == Paused
	if !s.Held() && !madePaused {
		return s, nil, conflict("the subscription is not paused")
	}
	if madePaused {
		s.Status = Active
	}
	wasHeld, heldAt := s.Held(), s.HeldAt
	s.HeldAt = time.Time{}
	if addPausedTime && wasHeld && !IsForever(s.AccessUntil()) {
		end := s.ExpiresAt
		if !s.Ours() {
			end = s.AccessUntil()
		}
		if left := end.Sub(heldAt); left > 0 {
			end = at.Add(left)
		}
		if end.After(maxInstant) {
			return s, nil, conflict("the end would lie after the year 9999")
		}
		if s.Ours() {
			s.ExpiresAt = end
		} else {
			s.CompUntil = end
		}
		s = s.revived(at)
	}
	return s, []Change{{EventResumed, s.AccessUntil()}}, nil
}

// Extend gives more time: ours from the later of its end and at; one of a provider keeps the provider's term and gets
// CompUntil, from the later of AccessUntil and at. An expired one comes back.
func (s Subscription) Extend(at time.Time, by time.Duration) (Subscription, []Change, error) {
	if err := s.changeable(); err != nil {
		return s, nil, err
	}
	if IsForever(s.AccessUntil()) {
		return s, nil, conflict("a lifetime subscription cannot be extended")
	}
	from := s.ExpiresAt
	if !s.Ours() {
		from = s.AccessUntil()
	}
	if from.Before(at) {
		from = at
	}
	end := from.Add(by)
	if end.After(maxInstant) {
		return s, nil, conflict("the end would lie after the year 9999")
	}
	if s.Ours() {
		s.ExpiresAt = end
	} else {
		s.CompUntil = end
	}
	s = s.revived(at)
	extended := []Change{{EventExtended, s.AccessUntil()}}
	if s.Ours() {
		s, extended = s.renewed(extended)
	}
	return s, extended, nil
}

// revived brings an expired subscription back whose end lies ahead again: to the provider's own status where that is a
// live one, else to active.
func (s Subscription) revived(at time.Time) Subscription {
	if s.Status != Expired || !at.Before(s.AccessUntil()) {
		return s
	}
	s.ExpiredAt = time.Time{}
	s.Status = Active
	if status, known := fromProvider[s.ProviderStatus]; known && (status.Live() || status == Paused) {
		s.Status = status
	}
	return s
}

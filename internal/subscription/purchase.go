package subscription

import "time"

// Purchase gives our subscription time that was paid for once: from the later of its end and at, or for ever where by is 0.
// from and until are what was given.
func (s Subscription) Purchase(at time.Time, by time.Duration) (next Subscription, from, until time.Time, changes []Change, err error) {
	if !s.Ours() {
		return s, from, until, nil, ErrProviderOwned
	}
	from = laterOf(s.ExpiresAt, at)
	if by > 0 {
		coming := s.NextPlanKey
		s.NextPlanKey = "" // this plan was paid for: what is to come with a renewal still is
		next, changes, err = s.Extend(at, by)
		next.NextPlanKey = coming
		return next, from, next.ExpiresAt, changes, err
	}
	if err := s.changeable(); err != nil {
		return s, from, until, nil, err
	}
	if IsForever(s.ExpiresAt) {
		return s, from, until, nil, conflict("a lifetime subscription cannot be extended")
	}
	next = s
	next.ExpiresAt = Forever
	next = next.revived(at)
	return next, from, Forever, []Change{{EventExtended, next.AccessUntil()}}, nil
}

// TakeBack takes the part of a given time that lies ahead of at back, because its price was refunded. Where nothing is left
// the subscription is canceled. One that has ended, or that was given for ever by somebody else, stays as it is.
func (s Subscription) TakeBack(at, from, until time.Time) (next Subscription, changes []Change) {
	if !s.Ours() || s.Status == Canceled || s.Status == Expired || !at.Before(until) {
		return s, nil
	}
	end := s.ExpiresAt
	switch start := laterOf(from, at); {
	case IsForever(until) && IsForever(s.ExpiresAt):
		end = start
	case IsForever(until), IsForever(s.ExpiresAt):
		return s, nil
	default:
		end = end.Add(-until.Sub(start))
	}
	next = s
	if at.Before(end) {
		next.ExpiresAt = end
		return next, nil
	}
	next.Status, next.ExpiredAt, next.ExpiresAt = Canceled, time.Time{}, earlierOf(s.ExpiresAt, at)
	return next, []Change{{EventCanceled, at}}
}

package order_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"termkeeper/internal/order"
)

var at = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func pending() order.Order {
	return order.Order{ID: "o", Status: order.Pending, Amount: 1000, Currency: "USD", LatePayment: order.LateFulfil, ExpiresAt: at.Add(time.Minute), CreatedAt: at.Add(-time.Hour)}
}

func with(status order.Status, policy order.Policy) order.Order {
	o := pending()
	o.Status, o.LatePayment = status, policy
	return o
}

func money(id string, amount int64, currency string) order.Payment {
	return order.Payment{ID: id, Amount: amount, Currency: currency, CapturedAt: at.Add(-time.Second)}
}

func right(id string) order.Payment { return money(id, 1000, "USD") }

func paidBy(payments ...order.Payment) order.Answer {
	return order.Answer{Checkout: order.Done, Payments: payments}
}

func topics(out order.Outcome) []string {
	var list []string
	for _, n := range out.Notes {
		if n.Topic != "" {
			list = append(list, n.Topic)
		}
	}
	return list
}

func states(out order.Outcome) []order.PaymentState {
	var list []order.PaymentState
	for _, p := range out.Payments {
		list = append(list, p.State)
	}
	return list
}

func TestWhatAnAnswerMeans(t *testing.T) {
	t.Parallel()
	review := []string{order.TopicReview, order.AlertReview}
	for name, c := range map[string]struct {
		order  order.Order
		known  []order.Payment
		answer order.Answer
		status order.Status
		reason string
		states []order.PaymentState
		topics []string
	}{
		"open":              {pending(), nil, order.Answer{Checkout: order.Open}, order.Pending, "", nil, nil},
		"on its way":        {pending(), nil, order.Answer{Checkout: order.Working}, order.Pending, "", nil, nil},
		"closed":            {pending(), nil, order.Answer{Checkout: order.Closed}, order.Expired, "", nil, []string{order.TopicExpired}},
		"paid":              {pending(), nil, paidBy(right("a")), order.Paid, "", []order.PaymentState{""}, nil},
		"paid in two":       {pending(), nil, paidBy(right("a"), right("b")), order.Paid, "", []order.PaymentState{"", order.PaymentReview}, review},
		"too little":        {pending(), nil, paidBy(money("a", 100, "USD")), order.Review, order.ReasonAmount, []order.PaymentState{order.PaymentReview}, review},
		"too much":          {pending(), nil, paidBy(money("a", 1001, "USD")), order.Review, order.ReasonAmount, []order.PaymentState{order.PaymentReview}, review},
		"other currency":    {pending(), nil, paidBy(money("a", 1000, "EUR")), order.Review, order.ReasonCurrency, []order.PaymentState{order.PaymentReview}, review},
		"zero-decimal":      {pending(), nil, paidBy(money("a", 1000, "JPY")), order.Review, order.ReasonCurrency, []order.PaymentState{order.PaymentReview}, review},
		"no payment":        {pending(), nil, paidBy(), order.Review, order.ReasonNoPayment, nil, review},
		"given back before": {pending(), nil, paidBy(order.Payment{ID: "a", Amount: 1000, Refunded: 1000, Currency: "USD"}), order.Refunded, order.ReasonAtProvider, []order.PaymentState{order.PaymentRefunded}, []string{order.TopicRefunded}},
		"late, fulfil":      {with(order.Expired, order.LateFulfil), nil, paidBy(right("a")), order.Paid, order.ReasonLate, []order.PaymentState{""}, []string{order.AlertLate}},
		"late, refund":      {with(order.Expired, order.LateRefund), nil, paidBy(right("a")), order.Refunding, order.ReasonLate, []order.PaymentState{order.PaymentRefunding}, []string{order.AlertLate}},
		"late, review":      {with(order.Canceled, order.LateReview), nil, paidBy(right("a")), order.Review, order.ReasonLate, []order.PaymentState{order.PaymentReview}, append([]string{order.AlertLate}, review...)},
		"late and wrong":    {with(order.Expired, order.LateFulfil), nil, paidBy(money("a", 1, "USD")), order.Review, order.ReasonAmount, []order.PaymentState{order.PaymentReview}, append([]string{order.AlertLate}, review...)},
		"late, failed":      {with(order.Failed, order.LateFulfil), nil, paidBy(right("a")), order.Paid, order.ReasonLate, []order.PaymentState{""}, []string{order.AlertLate}},
		"late, in two":      {with(order.Expired, order.LateRefund), nil, paidBy(right("a"), right("b")), order.Refunding, order.ReasonLate, []order.PaymentState{order.PaymentRefunding, order.PaymentReview}, append([]string{order.AlertLate}, review...)},
		"second payment": {
			with(order.Fulfilled, order.LateFulfil),
			[]order.Payment{{ID: "a", Amount: 1000, Currency: "USD", State: order.PaymentFulfilled}},
			paidBy(right("b")),
			order.Fulfilled, "",
			[]order.PaymentState{order.PaymentFulfilled, order.PaymentReview},
			review,
		},
		"second payment of a refunded one": {
			with(order.Refunded, order.LateFulfil),
			[]order.Payment{{ID: "a", Amount: 1000, Currency: "USD", State: order.PaymentRefunded}},
			paidBy(right("b")),
			order.Refunded, "",
			[]order.PaymentState{order.PaymentRefunded, order.PaymentReview},
			review,
		},
		"fulfilled, closed since": {with(order.Fulfilled, order.LateFulfil), nil, order.Answer{Checkout: order.Closed}, order.Fulfilled, "", nil, nil},
		"not captured":            {pending(), nil, order.Answer{Checkout: order.Open, Payments: []order.Payment{{ID: "a", Currency: "USD"}}}, order.Pending, "", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := c.order.Hear(c.known, c.answer, at)
			require.Equal(t, c.status, out.Order.Status)
			require.Equal(t, c.reason, out.Order.Reason)
			require.Equal(t, c.states, states(out))
			require.Equal(t, c.topics, topics(out))
			again := out.Order.Hear(out.Payments, c.answer, at.Add(time.Minute))
			require.Equal(t, out.Order, again.Order, "heard twice")
			require.Equal(t, out.Payments, again.Payments)
			require.Empty(t, again.Notes)
		})
	}
}

func TestCancelThatWasAskedForEndsAsCanceled(t *testing.T) {
	t.Parallel()
	asked, err := pending().AskCancel()
	require.NoError(t, err)
	require.Equal(t, order.Canceled, asked.Order.Hear(nil, order.Answer{Checkout: order.Closed}, at).Order.Status)
	paid := asked.Order.Hear(nil, paidBy(right("a")), at).Order
	require.Equal(t, order.Paid, paid.Status, "a payment that was faster wins")
	require.Empty(t, paid.Reason)
	_, err = with(order.Fulfilled, order.LateFulfil).AskCancel()
	require.ErrorIs(t, err, order.ErrConflict)
}

func TestSilenceNeverEndsAnOrder(t *testing.T) {
	t.Parallel()
	o := pending()
	now := at
	var alerts int
	var pauses []time.Duration
	for range 8 {
		out := o.Unanswered("it answered with status 500", 0, now)
		alerts += len(out.Notes)
		require.Equal(t, order.Pending, out.Order.Status)
		pauses = append(pauses, out.Order.NextAttemptAt.Sub(now))
		o, now = out.Order, out.Order.NextAttemptAt
	}
	require.Equal(t, []time.Duration{
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, 30 * time.Minute, 30 * time.Minute, 30 * time.Minute,
	}, pauses)
	require.Equal(t, 8, o.Attempts)
	require.Equal(t, 2, alerts, "after an hour, under one key")
	wait := o.Unanswered("it has too many requests", time.Hour, now).Order.NextAttemptAt
	require.Equal(t, now.Add(time.Hour), wait, "what the provider asked for is honoured")
	heard := o.Hear(nil, order.Answer{Checkout: order.Open}, now).Order
	require.Zero(t, heard.UnansweredSince)
	require.Empty(t, heard.LastError)
}

func TestThreeTimesNotFoundOverTenMinutesGoesToReview(t *testing.T) {
	t.Parallel()
	o := pending()
	now := at
	for range 10 { // many within a minute prove nothing
		out := o.Unknown(now)
		require.Equal(t, order.Pending, out.Order.Status)
		o, now = out.Order, now.Add(time.Second)
	}
	first := pending().Unknown(at).Order
	second := first.Unknown(first.NextAttemptAt).Order
	require.Equal(t, order.Pending, second.Status)
	third := second.Unknown(second.NextAttemptAt)
	require.Equal(t, order.Review, third.Order.Status)
	require.Equal(t, order.ReasonNotFound, third.Order.Reason)
	require.Equal(t, []string{order.TopicReview, order.AlertReview}, topics(third))
	require.Equal(t, order.Pending, second.Hear(nil, order.Answer{Checkout: order.Open}, at).Order.Unknown(second.NextAttemptAt).Order.Status, "an answer begins the count anew")
}

func TestOrderWithoutACheckoutFailsOnlyWhenOverdueAndOftenMissed(t *testing.T) {
	t.Parallel()
	o := pending()
	o.ExpiresAt = at.Add(-time.Minute)
	now := at
	for range 2 {
		out := o.Unmade(now)
		require.Equal(t, order.Pending, out.Order.Status)
		o, now = out.Order, out.Order.NextAttemptAt
	}
	require.Equal(t, order.Failed, o.Unmade(now).Order.Status)
	o.ExpiresAt = now.Add(time.Minute)
	require.Equal(t, order.Pending, o.Unmade(now).Order.Status)
}

func TestResolve(t *testing.T) {
	t.Parallel()
	review := func(p ...order.Payment) []order.Payment {
		for i := range p {
			p[i].State = order.PaymentReview
		}
		return p
	}
	under := with(order.Review, order.LateFulfil)
	out, err := under.Resolve(review(money("a", 1, "USD"), right("b")), order.AsFulfilled, at)
	require.NoError(t, err)
	require.Equal(t, order.Paid, out.Order.Status)
	require.Equal(t, []order.PaymentState{order.PaymentReview, ""}, states(out), "the one that fits is taken")
	out, err = under.Resolve(review(money("a", 1, "USD"), right("b")), order.AsRefunded, at)
	require.NoError(t, err)
	require.Equal(t, order.Refunding, out.Order.Status)
	require.Equal(t, []order.PaymentState{order.PaymentRefunding, order.PaymentRefunding}, states(out))
	_, err = under.Resolve(review(right("a")), order.AsCanceled, at)
	require.ErrorIs(t, err, order.ErrConflict, "money that nobody gave back")
	out, err = under.Resolve(nil, order.AsCanceled, at)
	require.NoError(t, err)
	require.Equal(t, order.Canceled, out.Order.Status)
	_, err = under.Resolve(nil, order.AsFulfilled, at)
	require.ErrorIs(t, err, order.ErrConflict, "nothing was paid")
	_, err = pending().Resolve(nil, order.AsCanceled, at)
	require.ErrorIs(t, err, order.ErrConflict)
	_, err = under.Resolve(nil, "nonsense", at)
	require.ErrorIs(t, err, order.ErrConflict)
	surplus := append([]order.Payment{{ID: "a", Amount: 1000, Currency: "USD", State: order.PaymentFulfilled}}, review(right("b"))...)
	out, err = with(order.Fulfilled, order.LateFulfil).Resolve(surplus, order.AsRefunded, at)
	require.NoError(t, err)
	require.Equal(t, []order.PaymentState{order.PaymentFulfilled, order.PaymentRefunding}, states(out))
	back, takeBack := out.Order.GaveBack(out.Payments, "b", order.ReasonAsked, at)
	require.Equal(t, order.Fulfilled, back.Order.Status, "it keeps the payment that fulfilled it")
	require.False(t, takeBack)
}

func TestRefundThatIsRefusedKeepsWhatIsPaid(t *testing.T) {
	t.Parallel()
	one := []order.Payment{{ID: "a", Amount: 1000, Currency: "USD", State: order.PaymentFulfilled}}
	out, err := with(order.Fulfilled, order.LateFulfil).Refund(slices.Clone(one), at)
	require.NoError(t, err)
	no := out.Order.NotGivenBack(out.Payments, "a", "the charge is disputed", at)
	require.Equal(t, order.Review, no.Order.Status)
	require.Equal(t, order.ReasonRefundFailed, no.Order.Reason)
	require.Equal(t, []order.PaymentState{order.PaymentReview}, states(no))
	two := append(slices.Clone(one), order.Payment{ID: "b", Amount: 1000, Currency: "USD", State: order.PaymentRefunding})
	no = with(order.Refunding, order.LateFulfil).NotGivenBack(two, "b", "no", at)
	require.Equal(t, order.Fulfilled, no.Order.Status)
	_, err = with(order.Expired, order.LateFulfil).Refund(nil, at)
	require.ErrorIs(t, err, order.ErrConflict)
}

// Whatever is heard in whatever order and however often, each captured payment is decided on or carries the order, at most one is
// fulfilled, and what does not match is never fulfilled.
func TestNoMoneyIsForgotten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		o := with(order.Pending, rapid.SampledFrom(order.Policies()).Draw(r, "policy"))
		var payments []order.Payment
		take := func(out order.Outcome) { o, payments = out.Order, out.Payments }
		now := at
		for range rapid.IntRange(1, 25).Draw(r, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 3600).Draw(r, "pause")) * time.Second)
			switch rapid.IntRange(0, 7).Draw(r, "step") {
			case 0, 1:
				p := money(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "payment"), 1000, "USD")
				if p.ID == "c" {
					p.Amount = rapid.SampledFrom([]int64{1000, 999}).Draw(r, "amount")
				}
				p.CapturedAt = at.Add(time.Duration(rapid.IntRange(-5, 5).Draw(r, "captured")) * time.Minute)
				take(o.Hear(payments, paidBy(p), now))
			case 2:
				take(o.Hear(payments, order.Answer{Checkout: rapid.SampledFrom([]order.Checkout{order.Open, order.Working, order.Closed}).Draw(r, "checkout")}, now))
			case 3:
				if o.Status == order.Pending {
					o = o.Unanswered("no", 0, now).Order
				}
			case 4: // what the jobs do next
				switch o.Status {
				case order.Paid:
					o.Status = order.Fulfilling
					out, err := o.Fulfil(payments, "s", now)
					require.NoError(r, err)
					take(out)
				case order.Refunding:
					for _, p := range slices.Clone(payments) {
						if p.State == order.PaymentRefunding {
							out, _ := o.GaveBack(slices.Clone(payments), p.ID, p.Reason, now)
							take(out)
						}
					}
					require.NotEqual(r, order.Refunding, o.Status)
				default:
				}
			case 5:
				if out, err := o.Refund(slices.Clone(payments), now); err == nil {
					take(out)
				}
			case 6:
				as := rapid.SampledFrom([]string{order.AsFulfilled, order.AsRefunded, order.AsCanceled}).Draw(r, "as")
				if out, err := o.Resolve(slices.Clone(payments), as, now); err == nil {
					take(out)
				}
			case 7: // somebody refunds at the provider
				if len(payments) > 0 {
					out, _ := o.GaveBack(slices.Clone(payments), payments[0].ID, order.ReasonAtProvider, now)
					take(out)
				}
			}
			count := map[order.PaymentState]int{}
			for _, p := range payments {
				count[p.State]++
			}
			require.LessOrEqual(r, count[order.PaymentFulfilled]+count[""], 1, "%+v %+v", o, payments)
			require.Equal(r, o.Status == order.Paid || o.Status == order.Fulfilling, count[""] == 1, "%+v %+v", o, payments)
			require.Equal(r, o.Status == order.Refunding, count[order.PaymentRefunding] > 0, "%+v %+v", o, payments)
			require.Equal(r, o.Status == order.Fulfilled, count[order.PaymentFulfilled] == 1 && count[order.PaymentRefunding] == 0 && count[""] == 0, "%+v %+v", o, payments)
		}
	})
}

package payment_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/payment"
	"termkeeper/internal/secret"
	"termkeeper/internal/simulator"
)

// shop is a client of a simulated provider.
func shop(t *testing.T) (*simulator.Simulator, *payment.Client) {
	t.Helper()
	sim, _ := stripeClient(t, simulator.Options{})
	c := payment.NewClient(secret.NewText(stripeKey), sim.StripeURL())
	t.Cleanup(c.Close)
	return sim, c
}

// TestAnOrderAtTheProvider goes with one order from its checkout to its refund.
func TestAnOrderAtTheProvider(t *testing.T) {
	t.Parallel()
	sim, c := shop(t)
	began := sim.Now()
	in := newCheckout("o_1")
	in.Currency, in.Amount = "JPY", 1500
	made, err := c.CreateCheckout(t.Context(), in, "make")
	require.NoError(t, err)
	require.NotEmpty(t, made.URL)
	require.Equal(t, payment.CheckoutSession{
		ID: made.ID, URL: made.URL, OrderID: "o_1", UserID: "u_1", Status: "open", PaymentStatus: "unpaid", Amount: 1500, Currency: "JPY",
		ExpiresAt: in.ExpiresAt.UTC().Truncate(time.Second), Created: made.Created,
	}, made)
	other, err := c.CreateCheckout(t.Context(), newCheckout("o_2"), "make another")
	require.NoError(t, err)

	again, err := c.CreateCheckout(t.Context(), in, "make")
	require.NoError(t, err)
	require.Equal(t, made, again, "the key makes one")
	in.ExpiresAt = in.ExpiresAt.Add(time.Second)
	_, err = c.CreateCheckout(t.Context(), in, "make")
	require.ErrorIs(t, err, payment.ErrNoAnswer, "it is not refused: there is one")
	found, err := c.FindCheckout(t.Context(), "o_1", began)
	require.NoError(t, err)
	require.Equal(t, made, found)
	_, err = c.FindCheckout(t.Context(), "o_3", began)
	require.ErrorIs(t, err, payment.ErrNotFound)
	_, _, err = c.Checkout(t.Context(), "cs_none")
	require.ErrorIs(t, err, payment.ErrNotFound)
	_, err = c.ExpireCheckout(t.Context(), "cs_none", "close none")
	require.ErrorIs(t, err, payment.ErrNotFound)

	intent, err := sim.PayCheckout(made.ID, simulator.PayOptions{})
	require.NoError(t, err)
	paid, asked, err := c.Checkout(t.Context(), made.ID)
	require.NoError(t, err)
	require.False(t, asked.After(sim.Now()))
	captured := payment.Payment{
		ID: intent.ID, OrderID: "o_1", CustomerID: intent.CustomerID, Status: "succeeded", Amount: 1500, Currency: "JPY", Created: intent.Created, ChargeID: intent.ChargeID,
	}
	require.Equal(t, "complete", paid.Status)
	require.Equal(t, "paid", paid.PaymentStatus)
	require.Equal(t, []payment.Payment{captured}, paid.Payments)
	var refused *payment.RefusalError
	_, err = c.ExpireCheckout(t.Context(), made.ID, "close paid")
	require.ErrorAs(t, err, &refused)

	surplus, err := sim.ExtraPayment(made.ID, simulator.PayOptions{Amount: 700})
	require.NoError(t, err)
	payments, err := c.OrderPayments(t.Context(), "o_1", began)
	require.NoError(t, err)
	require.Len(t, payments, 2)
	require.Equal(t, surplus.ID, payments[0].ID, "the newest first")
	require.EqualValues(t, 700, payments[0].Amount)
	require.Equal(t, captured, payments[1])

	part, err := c.Refund(t.Context(), intent.ID, 500, "part")
	require.NoError(t, err)
	require.Equal(t, payment.Refund{ID: part.ID, PaymentID: intent.ID, ChargeID: intent.ChargeID, Status: "succeeded", Amount: 500, Currency: "JPY", Created: part.Created}, part)
	same, err := c.Refund(t.Context(), intent.ID, 500, "part")
	require.NoError(t, err)
	require.Equal(t, part, same, "the key gives back once")
	_, err = c.Refund(t.Context(), intent.ID, 1001, "too much")
	require.ErrorAs(t, err, &refused)
	rest, err := c.Refund(t.Context(), intent.ID, 0, "rest")
	require.NoError(t, err)
	require.EqualValues(t, 1000, rest.Amount)
	_, err = c.Refund(t.Context(), intent.ID, 0, "more")
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "charge_already_refunded", refused.Code)
	refunds, err := c.Refunds(t.Context(), intent.ID)
	require.NoError(t, err)
	require.Equal(t, []payment.Refund{rest, part}, refunds)
	paid, _, err = c.Checkout(t.Context(), made.ID)
	require.NoError(t, err)
	require.EqualValues(t, 1500, paid.Payments[0].Refunded)
	refunds, err = c.Refunds(t.Context(), surplus.ID)
	require.NoError(t, err)
	require.Empty(t, refunds)

	closed, err := c.ExpireCheckout(t.Context(), other.ID, "close")
	require.NoError(t, err)
	require.Equal(t, "expired", closed.Status)
	require.Empty(t, closed.URL)
	require.False(t, closed.Processing)
	_, err = sim.PayCheckout(other.ID, simulator.PayOptions{})
	require.Error(t, err, "nothing can be paid there afterwards")
}

// A payment that takes days is neither paid nor closable, until it is one of them.
func TestAnOrderThatIsPaidSlowly(t *testing.T) {
	t.Parallel()
	for name, succeeds := range map[string]bool{"and is": true, "and is not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sim, c := shop(t)
			made, err := c.CreateCheckout(t.Context(), newCheckout("o_1"), "make")
			require.NoError(t, err)
			_, err = sim.PayCheckout(made.ID, simulator.PayOptions{Fail: true})
			require.NoError(t, err)
			session, _, err := c.Checkout(t.Context(), made.ID)
			require.NoError(t, err)
			require.Equal(t, "open", session.Status)
			require.False(t, session.Processing)
			require.Empty(t, session.Payments)

			intent, err := sim.PayCheckout(made.ID, simulator.PayOptions{Async: true})
			require.NoError(t, err)
			session, _, err = c.Checkout(t.Context(), made.ID)
			require.NoError(t, err)
			require.Equal(t, "complete", session.Status)
			require.Equal(t, "unpaid", session.PaymentStatus)
			require.True(t, session.Processing)
			require.Empty(t, session.Payments)

			_, err = sim.FinishPayment(intent.ID, succeeds, false)
			require.NoError(t, err)
			session, _, err = c.Checkout(t.Context(), made.ID)
			require.NoError(t, err)
			require.False(t, session.Processing)
			require.Equal(t, succeeds, session.PaymentStatus == "paid")
			require.Equal(t, succeeds, len(session.Payments) == 1)
		})
	}
}

// After a lost answer the same key tells what was made, and after a fault, which the key repeats, the list does.
func TestALostAnswerOfAnOrder(t *testing.T) {
	t.Parallel()
	sim, c := shop(t)
	// After a reset net/http itself asks again, which the key allows.
	for _, kind := range []string{simulator.HTML, simulator.Truncated, simulator.Status500} {
		order := "o_" + kind
		require.NoError(t, sim.AddRESTFault(simulator.RESTFault{Kind: kind, After: true, Method: http.MethodPost}))
		_, err := c.CreateCheckout(t.Context(), newCheckout(order), order)
		require.ErrorIs(t, err, payment.ErrNoAnswer, kind)
		found, err := c.FindCheckout(t.Context(), order, sim.Now())
		require.NoError(t, err, kind)
		require.Equal(t, order, found.OrderID)

		intent, err := sim.PayCheckout(found.ID, simulator.PayOptions{})
		require.NoError(t, err)
		require.NoError(t, sim.AddRESTFault(simulator.RESTFault{Kind: kind, After: true, Method: http.MethodPost}))
		_, err = c.Refund(t.Context(), intent.ID, 0, "refund "+order)
		require.ErrorIs(t, err, payment.ErrNoAnswer, kind)
		refunds, err := c.Refunds(t.Context(), intent.ID)
		require.NoError(t, err)
		require.Len(t, refunds, 1, kind)
		if kind != simulator.Status500 {
			again, err := c.Refund(t.Context(), intent.ID, 0, "refund "+order)
			require.NoError(t, err, kind)
			require.Equal(t, refunds[0], again, kind)
		}
	}
}

package payment_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"

	"termkeeper/internal/payment"
	"termkeeper/internal/secret"
	"termkeeper/internal/simulator"
)

// A repeated change after a lost answer says what holds now, and not what held when it was made first.
func TestARepeatedChangeSaysWhatHoldsNow(t *testing.T) {
	t.Parallel()
	sim, api := stripeClient(t, simulator.Options{})
	c := payment.NewClient(secret.NewText(stripeKey), sim.StripeURL())
	t.Cleanup(c.Close)
	price := makePrice(t, api)
	lose := func(method string) {
		require.NoError(t, sim.AddRESTFault(simulator.RESTFault{Kind: simulator.HTML, After: true, Method: method}))
	}

	t.Run("somebody took it back meanwhile", func(t *testing.T) {
		sub := makeSubscription(t, api, price, nil)
		lose(http.MethodPost)
		_, err := c.CancelAtPeriodEnd(t.Context(), sub.ID, "end")
		require.ErrorIs(t, err, payment.ErrNoAnswer)
		_, err = api.Subscriptions.Update(sub.ID, &stripe.SubscriptionParams{CancelAtPeriodEnd: stripe.Bool(false)})
		require.NoError(t, err)
		again, err := c.CancelAtPeriodEnd(t.Context(), sub.ID, "end")
		require.NoError(t, err)
		require.False(t, again.Provider.CancelAtPeriodEnd)
	})
	t.Run("the end was set by an instant", func(t *testing.T) {
		sub := makeSubscription(t, api, price, func(p *stripe.SubscriptionParams) { p.CancelAt = stripe.Int64(sim.Now().AddDate(0, 0, 7).Unix()) })
		lose(http.MethodPost)
		_, err := c.Uncancel(t.Context(), sub.ID, "on")
		require.ErrorIs(t, err, payment.ErrNoAnswer)
		again, err := c.Uncancel(t.Context(), sub.ID, "on")
		require.NoError(t, err)
		require.True(t, again.Provider.CancelAt.IsZero())
	})
	t.Run("it is canceled", func(t *testing.T) {
		sub := makeSubscription(t, api, price, nil)
		lose(http.MethodDelete)
		_, err := c.CancelNow(t.Context(), sub.ID, "now")
		require.ErrorIs(t, err, payment.ErrNoAnswer)
		again, err := c.CancelNow(t.Context(), sub.ID, "now")
		require.NoError(t, err)
		require.Equal(t, "canceled", again.Provider.Status)
		_, err = c.CancelNow(t.Context(), "sub_none", "none")
		var refused *payment.RefusalError
		require.ErrorAs(t, err, &refused, "what the provider never knew was not canceled")
	})
}

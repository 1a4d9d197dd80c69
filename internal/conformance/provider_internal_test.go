package conformance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	adapter "termkeeper/internal/payment"
	"termkeeper/internal/secret"
)

// TestTheProviderAnswers asks with the adapter of the instance for all that a life has left there.
func TestTheProviderAnswers(t *testing.T) {
	t.Parallel()
	p, err := Serve(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	c := cast{now: time.Now().UTC().Truncate(time.Second), shape: Shape2023, tag: "T", one: Plan{"a", "price_a"}, two: Plan{"b", "price_b"}}
	refunded, lost := refundEnds(c), disputeLost(cast{now: c.now, shape: c.shape, tag: "U", one: c.one})
	p.hold(&try{cast: c, script: refunded, order: order{sequence: []int{0, 1, 3}}})
	p.hold(&try{script: lost, order: order{sequence: []int{0, 1, 2, 3, 4}}})
	client := adapter.NewClient(secret.NewText("sk_test_x"), p.URL())
	t.Cleanup(client.Close)

	got, asked, err := client.Subscription(t.Context(), "sub_Ta")
	require.NoError(t, err)
	require.Equal(t, "active", got.Status)
	require.Equal(t, "in_Ta1", got.Invoice.ID, "expanded")
	require.WithinDuration(t, time.Now(), asked, 5*time.Second, "the Date of the answer is right")
	_, _, err = client.Subscription(t.Context(), "sub_none")
	require.ErrorIs(t, err, adapter.ErrNotFound)

	invoice, err := client.Invoice(t.Context(), "in_Ta1")
	require.NoError(t, err)
	require.Equal(t, "sub_Ta", invoice.SubscriptionID)
	payment, err := client.Payment(t.Context(), "pi_in_Ta1")
	require.NoError(t, err)
	require.Equal(t, "in_Ta1", payment.InvoiceID)
	charge, err := client.Charge(t.Context(), "ch_in_Ta1")
	require.NoError(t, err)
	require.EqualValues(t, fullPrice, charge.Refunded)
	refunds, err := client.Refunds(t.Context(), "pi_in_Ta1")
	require.NoError(t, err)
	require.Len(t, refunds, 1)
	require.Equal(t, "succeeded", refunds[0].Status)
	dispute, err := client.Dispute(t.Context(), "dp_pi_in_Ua1")
	require.NoError(t, err)
	require.Equal(t, "lost", dispute.Status)

	ended, err := client.CancelNow(t.Context(), "sub_Ta", "key")
	require.NoError(t, err)
	require.Equal(t, "canceled", ended.Provider.Status)
	require.Equal(t, refunded.endedAt, ended.Provider.EndedAt.UTC(), "all orders of a life end it at the same instant")
	_, err = client.CancelAtPeriodEnd(t.Context(), "sub_Ta", "another")
	require.Error(t, err, "nothing of a canceled one is changed")
	changed, err := client.CancelAtPeriodEnd(t.Context(), "sub_Ua", "key")
	require.NoError(t, err)
	require.True(t, changed.Provider.CancelAtPeriodEnd)
}

package store_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/store"
	"termkeeper/internal/storetest"
)

// Who hears of an invoice and who hears of its payment never miss each other.
func TestAnInvoiceAndItsPaymentFindEachOther(t *testing.T) {
	t.Parallel()
	s := store.New(storetest.New(t))
	end := time.Date(2026, 12, 20, 0, 0, 0, 0, time.UTC)
	invoice := store.PaidInvoice{ID: "in_1", SubscriptionID: "sub_1", CustomerID: "cus_1", PeriodStart: end.AddDate(0, -1, 0), PeriodEnd: end}
	for _, id := range []string{"pi_1", "pi_2", "pi_3", "pi_4", "pi_5"} {
		invoice.ID = "in_" + id
		learn := []func() error{
			func() error { return s.LearnInvoice(t.Context(), invoice) },
			func() error {
				return s.LearnPayment(t.Context(), store.SeenPayment{ID: id, InvoiceID: invoice.ID, Amount: 900, Currency: "USD"})
			},
		}
		failures := make([]error, len(learn))
		var learning sync.WaitGroup
		for i, do := range learn {
			learning.Go(func() { failures[i] = do() })
		}
		learning.Wait()
		for _, err := range failures {
			require.NoError(t, err)
		}
		p, err := s.ProviderPayment(t.Context(), id, "", time.Time{})
		require.NoError(t, err)
		require.Equal(t, "sub_1", p.SubscriptionID)
		require.Equal(t, end, p.TakenBack.PeriodEnd)
	}
	_, err := s.ProviderPayment(t.Context(), "pi_none", "ch_none", time.Time{})
	require.ErrorIs(t, err, store.ErrNotFound)
}

func TestWhatWasTakenBackOfAPayment(t *testing.T) {
	t.Parallel()
	s := store.New(storetest.New(t))
	at := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	learn := func(id, charge string, amount int64) {
		require.NoError(t, s.LearnPayment(t.Context(), store.SeenPayment{ID: id, InvoiceID: "in_1", ChargeID: charge, Amount: amount, Currency: "USD"}))
	}
	refund := func(id, payment, status string, amount int64, answered bool) {
		require.NoError(t, s.KeepRefunds(t.Context(), payment, []store.SeenRefund{{
			ID: id, PaymentID: payment, Status: status, Amount: amount, Currency: "USD", Created: at,
		}}, answered))
	}
	taken := func(id, charge string) (paid, back int64, cause string) {
		p, err := s.ProviderPayment(t.Context(), id, charge, time.Time{})
		require.NoError(t, err)
		return p.TakenBack.Paid, p.TakenBack.Amount, p.Cause
	}
	equal := func(wantPaid, wantBack int64, wantCause, id, charge string) {
		t.Helper()
		paid, back, cause := taken(id, charge)
		require.Equal(t, []any{wantPaid, wantBack, wantCause}, []any{paid, back, cause})
	}
	learn("pi_1", "ch_1", 700)
	refund("re_1", "pi_1", "pending", 700, false)
	equal(700, 0, "", "pi_1", "")
	learn("pi_2", "ch_2", 300)
	refund("re_1", "pi_1", "succeeded", 700, false)
	refund("re_1", "pi_1", "succeeded", 700, false)
	refund("re_1", "pi_1", "pending", 700, false)
	equal(1000, 700, "re_1", "pi_1", "")
	equal(1000, 700, "re_1", "unknown", "ch_2")
	refund("re_1", "pi_1", "failed", 700, false)
	equal(1000, 0, "", "pi_2", "")
	refund("re_1", "pi_1", "succeeded", 700, false)
	equal(1000, 0, "", "pi_2", "")
	refund("re_1", "pi_1", "succeeded", 700, true) // the provider says so now
	equal(1000, 700, "re_1", "pi_2", "")

	dispute := store.SeenDispute{ID: "dp_1", PaymentID: "pi_2", Status: "needs_response", Amount: 300, Currency: "USD", Created: at, Said: at}
	require.NoError(t, s.KeepDispute(t.Context(), dispute, false))
	equal(1000, 700, "re_1", "pi_2", "")
	dispute.Status, dispute.Said = "lost", at.AddDate(0, 0, 1)
	require.NoError(t, s.KeepDispute(t.Context(), dispute, false))
	require.NoError(t, s.KeepDispute(t.Context(), dispute, false))
	equal(1000, 1000, "dp_1", "pi_1", "")
	p, err := s.ProviderPayment(t.Context(), "pi_1", "", at)
	require.NoError(t, err)
	require.Equal(t, dispute.Said, p.TakenBack.At, "when the last of it went")
}

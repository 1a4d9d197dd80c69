package simulator_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/simulator"
)

// A fault may wait for events of one type.
func TestFaultsOfOneType(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	sim := start(t, simulator.Options{Endpoint: simulator.Endpoint{URL: r.URL, Secret: secret}})
	steer(t, sim, "faults", `{"kind":"drop","type":"checkout.session.*"}`)
	bought(t, sim)
	bought(t, sim)
	r.wait(t, sim, 7)
	var lost []string
	for _, d := range sim.Deliveries() {
		if d.State == "dropped" {
			lost = append(lost, d.Type)
		}
	}
	require.Equal(t, []string{"checkout.session.completed"}, lost)
}

// The list of events goes back 30 days by the simulator's clock, and takes bounds and cursors.
func TestTheListOfEvents(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	bought(t, sim)
	old := get(t, sim, "events?limit=1")["data"].([]any)[0].(map[string]any)["id"].(string)
	from := sim.Advance(24 * time.Hour)
	bought(t, sim)
	require.Len(t, get(t, sim, "events")["data"], 8)
	require.Len(t, get(t, sim, "events?created[gte]="+strconv.FormatInt(from.Unix(), 10))["data"], 4)
	require.Len(t, get(t, sim, "events?ending_before="+old)["data"], 4)
	require.Len(t, get(t, sim, "events?starting_after="+old)["data"], 3)
	require.Len(t, get(t, sim, "events?types[0]=charge.succeeded&types[1]=payment_intent.succeeded")["data"], 4)
	sim.Advance(29*24*time.Hour + time.Hour)
	require.Len(t, get(t, sim, "events")["data"], 4)
	call(t, http.MethodGet, sim.StripeURL()+"/v1/events/"+old, "", "", http.StatusNotFound)
}

// The bodies of events about money differ between the shapes where Stripe's do: the newer one names no invoice.
func TestEventsAboutMoneyInBothShapes(t *testing.T) {
	t.Parallel()
	at := time.Unix(1793491300, 0).UTC()
	bodies := func(shape simulator.Shape) [][]byte {
		return [][]byte{
			simulator.PaymentIntentEventBody(shape, "evt_1", "payment_intent.succeeded", at, simulator.PaymentIntentFixture{
				ID: "pi_1", ChargeID: "ch_1", InvoiceID: "in_1", Amount: 2000, Metadata: map[string]string{"order_id": "order_1"}, Created: at,
			}),
			simulator.ChargeEventBody(shape, "evt_2", "charge.refunded", at, simulator.ChargeFixture{
				ID: "ch_1", PaymentIntentID: "pi_1", InvoiceID: "in_1", Amount: 2000, Refunded: 2000, Created: at,
			}),
			simulator.RefundEventBody(shape, "evt_3", "refund.updated", at, simulator.RefundFixture{
				ID: "re_1", ChargeID: "ch_1", PaymentIntentID: "pi_1", Amount: 2000, Created: at,
			}),
			simulator.DisputeEventBody(shape, "evt_4", "charge.dispute.closed", at, simulator.DisputeFixture{
				ID: "dp_1", ChargeID: "ch_1", PaymentIntentID: "pi_1", Amount: 2000, Status: "lost", Created: at,
			}),
			simulator.InvoicePaymentEventBody(shape, "evt_5", "invoice_payment.paid", at, simulator.InvoicePaymentFixture{
				ID: "inpay_1", InvoiceID: "in_1", PaymentIntentID: "pi_1", Amount: 2000, Created: at,
			}),
			simulator.CheckoutEventBody(shape, "evt_6", "checkout.session.completed", at, simulator.CheckoutFixture{
				ID: "cs_1", Mode: "payment", PaymentIntentID: "pi_1", Amount: 2000, Metadata: map[string]string{"order_id": "order_1"}, Created: at,
			}),
		}
	}
	for shape, named := range map[simulator.Shape]bool{simulator.Shape2023: true, simulator.Shape2025: false} {
		var objects []map[string]any
		for _, body := range bodies(shape) {
			var event struct {
				Created int64
				Data    struct{ Object map[string]any }
			}
			require.NoError(t, json.Unmarshal(body, &event))
			require.Equal(t, at.Unix(), event.Created)
			objects = append(objects, event.Data.Object)
		}
		for n, want := range []map[string]any{
			{"id": "pi_1", "status": "succeeded", "amount_received": 2000.0, "latest_charge": "ch_1", "metadata": map[string]any{"order_id": "order_1"}},
			{"id": "ch_1", "refunded": true, "amount_refunded": 2000.0, "payment_intent": "pi_1"},
			{"id": "re_1", "status": "succeeded", "charge": "ch_1", "payment_intent": "pi_1"},
			{"id": "dp_1", "status": "lost", "charge": "ch_1", "payment_intent": "pi_1"},
			{"id": "inpay_1", "status": "paid", "invoice": "in_1", "payment": map[string]any{"type": "payment_intent", "payment_intent": "pi_1"}},
			{"id": "cs_1", "mode": "payment", "payment_status": "paid", "payment_intent": "pi_1", "metadata": map[string]any{"order_id": "order_1"}},
		} {
			for key, value := range want {
				require.Equal(t, value, objects[n][key], "%s of %s", key, want["id"])
			}
		}
		for _, object := range objects[:2] {
			_, ok := object["invoice"]
			require.Equal(t, named, ok)
		}
	}
}

package conformance

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	adapter "termkeeper/internal/payment"
)

// TestBothShapesTellTheSame reads what is written with the adapter: all but where things stand is the same.
func TestBothShapesTellTheSame(t *testing.T) {
	t.Parallel()
	c := cast{now: time.Now().UTC().Truncate(time.Second), tag: "T", one: Plan{"a", "price_a"}, two: Plan{"b", "price_b"}, leeway: time.Hour, grace: 72 * time.Hour}
	read := func(e event, shape Shape) any {
		envelope, err := adapter.ParseEvent(e.body(shape))
		require.NoError(t, err)
		require.Equal(t, e.id, envelope.ID)
		require.Equal(t, e.created, envelope.Created.UTC())
		require.Equal(t, string(shape), envelope.APIVersion)
		switch e.about.(type) {
		case subscribed:
			p, err := adapter.Subscription(envelope.Data)
			require.NoError(t, err)
			require.NotZero(t, p.PeriodEnd)
			require.NotEmpty(t, p.PriceIDs)
			return p
		case billed:
			i, err := adapter.ReadInvoice(envelope.Data)
			require.NoError(t, err)
			require.NotEmpty(t, i.SubscriptionID)
			return []any{i.ID, i.SubscriptionID, i.PaidUntil, i.Nothing} // from basil on it does not say what paid it
		}
		return envelope.ObjectID
	}
	for _, l := range lives() {
		ids := map[string]bool{}
		for _, e := range l.play(c).events {
			require.Equal(t, read(e, Shape2023), read(e, Shape2025), "%s: %s", l.name, e.what)
			require.False(t, ids[e.id], "%s: two events are %s", l.name, e.id)
			ids[e.id] = true
			var object map[string]any
			require.NoError(t, json.Unmarshal(e.body(Shape2023), &object))
			require.Equal(t, "event", object["object"])
		}
	}
}

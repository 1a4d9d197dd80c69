package store

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Fact is something that others may want to know and that no subscription's terms tell: about an order, or an alert.
type Fact struct {
	Topic          string
	Key            string // names the fact and its period: it is told once
	SubscriptionID string // "" when it is about none
	UserID         string // "" when it is about none
	Kind           string // the variant of the topic; may be ""
	Boundary       time.Time
	Payload        any // becomes a JSON object; nil for none
}

// insertFact: a fact that was told already is not told again.
const insertFact = `INSERT INTO outbox (id, topic, dedupe_key, subscription_id, user_id, kind, boundary, payload, created_at)
VALUES (uuid_v7($8::timestamptz), $1, $2, $3::uuid, $4, $5, $6, $7::jsonb, $8::timestamptz) ON CONFLICT (dedupe_key) DO NOTHING`

// queueFacts writes facts in the caller's transaction. They are in the order in which they are given.
func queueFacts(batch *pgx.Batch, now time.Time, facts []Fact) error {
	for i, f := range facts {
		var payload []byte
		if f.Payload != nil {
			var err error
			if payload, err = json.Marshal(f.Payload); err != nil {
				return fmt.Errorf("writing the fact %s: %w", f.Topic, err)
			}
		}
		at := pgtype.Timestamptz{Time: now.Add(time.Duration(i) * time.Microsecond), Valid: true}
		batch.Queue(insertFact, f.Topic, f.Key, text(f.SubscriptionID), text(f.UserID), text(f.Kind), timestamptz(f.Boundary), payload, at)
	}
	return nil
}

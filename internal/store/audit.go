package store

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Audit is one entry of the audit log: who did what to whom, for what moves money.
type Audit struct {
	Actor       string // the key of a person, stripe, or the job that did it
	Action      string // snake_case, such as order_fulfilled
	SubjectType string // order, payment or subscription
	SubjectID   string
	Detail      any // becomes a JSON object; nil for none
}

const insertAudit = `INSERT INTO audit_log (id, at, actor, action, subject_type, subject_id, detail) VALUES ($1, $2, $3, $4, $5, $6, $7::jsonb)`

// queueAudit writes entries in the caller's transaction: what is not written down did not happen.
func queueAudit(batch *pgx.Batch, now time.Time, entries []Audit) error {
	for _, e := range entries {
		var detail []byte
		if e.Detail != nil {
			var err error
			if detail, err = json.Marshal(e.Detail); err != nil {
				return fmt.Errorf("writing the audit entry %s: %w", e.Action, err)
			}
		}
		batch.Queue(insertAudit, NewID(), now, e.Actor, e.Action, e.SubjectType, e.SubjectID, detail)
	}
	return nil
}

package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The answers to a claim that is not to be had.
var (
	ErrKeyReused     = errors.New("the key came with another body before")
	ErrKeyInProgress = errors.New("the first request with the key is still running")
)

// KeyRetention is how long an Idempotency-Key and its answer are kept.
const KeyRetention = 24 * time.Hour

// KeyedRequest is a write that came with an Idempotency-Key.
type KeyedRequest struct {
	APIKeyID string
	Method   string
	Path     string
	Key      string
	Body     []byte
}

// id is what a key is unique in: the API key, the method and the path. None of the first three holds a zero byte.
func (r KeyedRequest) id() []byte {
	sum := sha256.Sum256([]byte(r.APIKeyID + "\x00" + r.Method + "\x00" + r.Path + "\x00" + r.Key))
	return sum[:]
}

// KeptAnswer is the answer to a keyed request.
type KeptAnswer struct {
	Status int
	Body   []byte
}

// KeyClaim is the right to do what a keyed request asks for. It rides in the context of the request: the store's writes
// keep the answer in the transaction of their effect, so that a process that dies leaves both or none.
type KeyClaim struct {
	id     []byte
	claim  string
	began  time.Time // when the first request with the key came
	again  bool
	encode func(result any) (KeptAnswer, error)
	kept   bool
}

// Again reports whether a request with this key came before and left no answer: what it asks for may have been done.
func (c *KeyClaim) Again() bool { return c != nil && c.again }

// ObjectID is the id for what the request makes, where that is made in several steps: every request with the key gets the same
// one while the key is kept, so that one which comes again finds what the one before it has begun. It is a UUIDv7 of the
// instant at which the key came first. A nil claim has a new id each time.
func (c *KeyClaim) ObjectID() string {
	if c == nil {
		return NewID()
	}
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(slices.Clone(c.id), uint64(c.began.UnixMicro())))
	id := uuid.UUID(sum[:16])
	binary.BigEndian.PutUint16(id[4:6], uint16(c.began.UnixMilli()))     //nolint:gosec // the lower 16 bits
	binary.BigEndian.PutUint32(id[0:4], uint32(c.began.UnixMilli()>>16)) //nolint:gosec // the 32 bits above
	id[6] = id[6]&0x0f | 0x70                                            // version 7
	id[8] = id[8]&0x3f | 0x80                                            // of RFC 9562
	return id.String()
}

// Encode says how the result of the one write of this request is answered. A claim without it is kept after the effect.
func (c *KeyClaim) Encode(encode func(result any) (KeptAnswer, error)) { c.encode = encode }

// Kept reports whether the write has kept its answer. It is sure once the write has returned without an error.
func (c *KeyClaim) Kept() bool { return c.kept }

type keyClaimKey struct{}

// WithKeyClaim lets the writes under ctx keep their answer.
func WithKeyClaim(ctx context.Context, c *KeyClaim) context.Context {
	return context.WithValue(ctx, keyClaimKey{}, c)
}

// KeyClaimOf is the claim that rides in ctx, or nil.
func KeyClaimOf(ctx context.Context) *KeyClaim {
	c, _ := ctx.Value(keyClaimKey{}).(*KeyClaim)
	return c
}

// claimKey waits for the transaction that is keeping the key's answer, if there is one. It takes over what is past its
// retention, and a request of the same body that died: its lease has passed and it has no answer. The key is as old as the first
// of its requests.
const claimKey = `INSERT INTO idempotency_keys AS k (id, api_key_id, method, path, key, body_hash, claim, leased_until, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() + $8::interval, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET body_hash = excluded.body_hash, claim = excluded.claim, leased_until = excluded.leased_until,
	created_at = CASE WHEN k.created_at <= excluded.created_at - $9::interval THEN excluded.created_at ELSE k.created_at END,
	response_status = NULL, response_body = NULL
WHERE k.created_at <= excluded.created_at - $9::interval
	OR (k.response_status IS NULL AND k.leased_until <= excluded.created_at AND k.body_hash = excluded.body_hash)
RETURNING xmax <> 0, k.created_at` // a row that was there has the number of the transaction that changed it

const keyState = `SELECT body_hash = $2, response_status, response_body FROM idempotency_keys WHERE id = $1`

// ClaimKey takes the key for one request. Where the key has its answer already, that comes back instead of a claim.
// ErrKeyReused when it came with another body, ErrKeyInProgress while another request holds it. A holder that is silent for
// longer than the lease loses it.
func (s *Store) ClaimKey(ctx context.Context, r KeyedRequest, lease time.Duration) (*KeyClaim, *KeptAnswer, error) {
	id, hash := r.id(), sha256.Sum256(r.Body)
	const tries = 3 // a key that its holder gave back between the two statements is free
	for range tries {
		claim := &KeyClaim{id: id, claim: NewID()}
		err := s.pool.QueryRow(ctx, claimKey, id, r.APIKeyID, r.Method, r.Path, r.Key, hash[:], claim.claim, lease, KeyRetention).Scan(&claim.again, &claim.began)
		switch {
		case err == nil:
			return claim, nil, nil
		case !errors.Is(err, pgx.ErrNoRows):
			return nil, nil, fmt.Errorf("claiming an idempotency key: %w", err)
		}
		var same bool
		var status *int
		var body []byte
		err = s.pool.QueryRow(ctx, keyState, id, hash[:]).Scan(&same, &status, &body)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("reading an idempotency key: %w", err)
		case !same:
			return nil, nil, ErrKeyReused
		case status == nil:
			return nil, nil, ErrKeyInProgress
		}
		return nil, &KeptAnswer{Status: *status, Body: body}, nil
	}
	return nil, nil, ErrKeyInProgress
}

// keepAnswer is the fence as well: it finds no row where another request has taken the key over.
const keepAnswer = `UPDATE idempotency_keys SET response_status = $3, response_body = $4 WHERE id = $1 AND claim = $2 AND response_status IS NULL`

// finishClaim keeps the answer of the request whose claim rides in ctx, in the transaction of its effect. It comes last in
// the transaction: whoever asks with the same key waits for it. ErrConflict when the claim was taken over meanwhile; then
// the effect must not be committed, because the other request has it.
func finishClaim(ctx context.Context, tx pgx.Tx, result any) error {
	c := KeyClaimOf(ctx)
	if c == nil || c.encode == nil {
		return nil
	}
	answer, err := c.encode(result)
	if err != nil {
		return fmt.Errorf("encoding the answer to keep: %w", err)
	}
	if err := c.keep(tx.Exec(ctx, keepAnswer, c.id, c.claim, answer.Status, answer.Body)); err != nil {
		return err
	}
	c.kept = true
	return nil
}

func (c *KeyClaim) keep(tag pgconn.CommandTag, err error) error {
	if err != nil {
		return fmt.Errorf("keeping the answer of an idempotency key: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return ErrConflict
	}
	return nil
}

// KeepAnswer keeps the answer of a request whose effect is not one write of the store, after it. A process that dies in
// between leaves the key without an answer, and the next request with it does the work again. ErrConflict when the claim
// was taken over.
func (s *Store) KeepAnswer(ctx context.Context, c *KeyClaim, a KeptAnswer) error {
	return c.keep(s.pool.Exec(ctx, keepAnswer, c.id, c.claim, a.Status, a.Body))
}

const releaseKey = `DELETE FROM idempotency_keys WHERE id = $1 AND claim = $2 AND response_status IS NULL`

// ReleaseKey gives the key back after a request that had no effect.
func (s *Store) ReleaseKey(ctx context.Context, c *KeyClaim) error {
	if _, err := s.pool.Exec(ctx, releaseKey, c.id, c.claim); err != nil {
		return fmt.Errorf("giving an idempotency key back: %w", err)
	}
	return nil
}

const lapseKey = `UPDATE idempotency_keys SET leased_until = clock_timestamp() WHERE id = $1 AND claim = $2 AND response_status IS NULL`

// LapseKey ends the lease of the key after a request whose effect is not known: the same request may come again at once, and
// is told so by Again. A commit that came through although nobody heard of it has kept its answer, and stays.
func (s *Store) LapseKey(ctx context.Context, c *KeyClaim) error {
	if _, err := s.pool.Exec(ctx, lapseKey, c.id, c.claim); err != nil {
		return fmt.Errorf("ending the lease of an idempotency key: %w", err)
	}
	return nil
}

const dropKeys = `DELETE FROM idempotency_keys WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM idempotency_keys WHERE created_at <= $1::timestamptz - $2::interval ORDER BY created_at LIMIT $3 FOR UPDATE SKIP LOCKED))
	AND created_at <= $1::timestamptz - $2::interval`

// DropKeys removes at most limit keys that are past their retention at now, with or without an answer.
func (s *Store) DropKeys(ctx context.Context, now time.Time, limit int) (int, error) {
	return s.remove(ctx, "removing idempotency keys", dropKeys, now, KeyRetention, limit)
}

const (
	// PayloadRetention is how long the body of an event is kept that needs it no more.
	PayloadRetention = 30 * 24 * time.Hour
	// EventRetention is how long the id of such an event is known, so that a late copy has no second effect.
	EventRetention = 365 * 24 * time.Hour
)

// ErrPayloadGone says that the body of an event is past PayloadRetention, so that it cannot be applied again.
var ErrPayloadGone = errors.New("the body of the event is no longer kept")

// An event that was not applied yet keeps its body whatever its age.
const (
	emptyPayloads = `UPDATE payment_webhook_events SET payload = '' WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM payment_webhook_events WHERE status IN ('processed', 'ignored') AND octet_length(payload) > 0
		AND received_at <= $1::timestamptz - $2::interval ORDER BY received_at LIMIT $3 FOR UPDATE SKIP LOCKED))
	AND status IN ('processed', 'ignored')`

	dropEvents = `DELETE FROM payment_webhook_events WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM payment_webhook_events WHERE status IN ('processed', 'ignored') AND octet_length(payload) = 0
		AND received_at <= $1::timestamptz - $2::interval ORDER BY received_at LIMIT $3 FOR UPDATE SKIP LOCKED))
	AND status IN ('processed', 'ignored')`
)

// EmptyPayloads removes the bodies of at most limit events that were processed or ignored and are past PayloadRetention.
func (s *Store) EmptyPayloads(ctx context.Context, now time.Time, limit int) (int, error) {
	return s.remove(ctx, "emptying webhook events", emptyPayloads, now, PayloadRetention, limit)
}

// DropEvents removes at most limit emptied events that are past EventRetention.
func (s *Store) DropEvents(ctx context.Context, now time.Time, limit int) (int, error) {
	return s.remove(ctx, "removing webhook events", dropEvents, now, EventRetention, limit)
}

func (s *Store) remove(ctx context.Context, doing, query string, args ...any) (int, error) {
	tag, err := s.pool.Exec(ctx, query, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", doing, err)
	}
	return int(tag.RowsAffected()), nil
}

package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// APIKey is a key of the HTTP API, without the key.
type APIKey struct {
	ID        string
	Name      string
	Role      string // access, gateway, operator or admin
	Hash      []byte // SHA-256 of the key
	Prefix    string // its first characters
	CreatedAt time.Time
	RevokedAt *time.Time
}

const apiKeyColumns = `k.id, k.name, k.role, k.key_hash, k.prefix, k.created_at, k.revoked_at`

func collectAPIKeys(rows pgx.Rows, err error) ([]APIKey, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (APIKey, error) {
		var k APIKey
		err := row.Scan(&k.ID, &k.Name, &k.Role, &k.Hash, &k.Prefix, &k.CreatedAt, &k.RevokedAt)
		k.CreatedAt = k.CreatedAt.UTC()
		return k, err
	})
}

const createAPIKey = `INSERT INTO api_keys AS k (id, name, role, key_hash, prefix) VALUES ($1, $2, $3, $4, $5) RETURNING ` + apiKeyColumns

// CreateAPIKey keeps a new key; of the given one it takes name, role, hash and prefix.
func (s *Store) CreateAPIKey(ctx context.Context, k APIKey) (APIKey, error) {
	list, err := collectAPIKeys(s.pool.Query(ctx, createAPIKey, NewID(), k.Name, k.Role, k.Hash, k.Prefix))
	if err != nil {
		return APIKey{}, fmt.Errorf("creating an API key: %w", err)
	}
	return list[0], nil
}

const apiKeyByHash = `SELECT ` + apiKeyColumns + ` FROM api_keys k WHERE k.key_hash = $1 AND k.revoked_at IS NULL`

// APIKeyByHash is the key with this SHA-256, or ErrNotFound when there is none or it was revoked.
func (s *Store) APIKeyByHash(ctx context.Context, hash []byte) (APIKey, error) {
	list, err := collectAPIKeys(s.pool.Query(ctx, apiKeyByHash, hash))
	if err != nil {
		return APIKey{}, fmt.Errorf("looking an API key up: %w", err)
	}
	if len(list) == 0 {
		return APIKey{}, ErrNotFound
	}
	return list[0], nil
}

const apiKeys = `SELECT ` + apiKeyColumns + ` FROM api_keys k ORDER BY k.created_at, k.id`

// APIKeys are all keys, oldest first, revoked ones too.
func (s *Store) APIKeys(ctx context.Context) ([]APIKey, error) {
	list, err := collectAPIKeys(s.pool.Query(ctx, apiKeys))
	if err != nil {
		return nil, fmt.Errorf("listing API keys: %w", err)
	}
	return list, nil
}

// revokeAPIKey keeps the instant of the first revocation.
const revokeAPIKey = `UPDATE api_keys AS k SET revoked_at = coalesce(k.revoked_at, now()) WHERE k.id = $1 RETURNING ` + apiKeyColumns

// RevokeAPIKey ends a key for good. ErrNotFound when there is none.
func (s *Store) RevokeAPIKey(ctx context.Context, id string) (APIKey, error) {
	list, err := collectAPIKeys(s.pool.Query(ctx, revokeAPIKey, id))
	if err != nil {
		return APIKey{}, fmt.Errorf("revoking API key %s: %w", id, err)
	}
	if len(list) == 0 {
		return APIKey{}, ErrNotFound
	}
	return list[0], nil
}

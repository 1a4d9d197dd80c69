package secret

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
)

const (
	// APIKeyScheme begins every API key, so that a leaked one is found by scanners.
	APIKeyScheme = "tk_"
	// apiKeyBytes of randomness make guessing hopeless, and a plain hash enough to store.
	apiKeyBytes = 32
	// apiKeyShown are the characters that tell keys apart in lists: tk_ and 36 of the 256 bits.
	apiKeyShown = 9
)

// APIKey is a new key of the HTTP API. Text is shown once to who asked for it; only Hash and Prefix are kept.
type APIKey struct {
	Text   Text
	Hash   [sha256.Size]byte
	Prefix string
}

// NewAPIKey makes a random key.
func NewAPIKey() APIKey {
	raw := make([]byte, apiKeyBytes)
	_, _ = rand.Read(raw) // never returns an error since Go 1.24
	text := APIKeyScheme + base64.RawURLEncoding.EncodeToString(raw)
	return APIKey{Text: NewText(text), Hash: HashAPIKey(text), Prefix: text[:apiKeyShown]}
}

// HashAPIKey is what the database keeps of a key.
func HashAPIKey(key string) [sha256.Size]byte {
	var usual [64]byte // longer than a key, so that hashing one allocates nothing
	return sha256.Sum256(append(usual[:0], key...))
}

package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
)

// sealedVersion begins everything that is sealed, so that another way of sealing can be told apart later.
const sealedVersion = 1

// keyBytes make AES-256.
const keyBytes = 32

// ErrKey says that a key is not the base64 of 32 bytes.
var ErrKey = errors.New("must be the base64 of 32 bytes; `openssl rand -base64 32` makes one")

// ErrSealed says that a value was sealed with another key or for another place, or was changed.
var ErrSealed = errors.New("the sealed value cannot be opened with this key")

// Sealer encrypts what is stored, by AES-256-GCM. Each value has a random nonce of 96 bits, so that one key is good for
// four thousand million values (NIST SP 800-38D, 8.3).
type Sealer struct {
	aead cipher.AEAD
}

// NewSealer takes a key as base64 of 32 bytes. The error is ErrKey.
func NewSealer(key Text) (*Sealer, error) {
	raw, err := base64.StdEncoding.DecodeString(key.Reveal())
	if err != nil || len(raw) != keyBytes {
		return nil, ErrKey
	}
	block, err := aes.NewCipher(raw)
	if err != nil {
		return nil, ErrKey
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, ErrKey
	}
	return &Sealer{aead: aead}, nil
}

// Seal encrypts a value for one place, for instance a table and the id of a row: it opens only there.
func (s *Sealer) Seal(value Text, place string) []byte {
	return s.aead.Seal([]byte{sealedVersion}, nil, []byte(value.Reveal()), []byte(place)) //nolint:gosec // G407: this AEAD makes the nonce itself and takes none.
}

// Open decrypts what was sealed for the place. The error is ErrSealed.
func (s *Sealer) Open(sealed []byte, place string) (Text, error) {
	if len(sealed) == 0 || sealed[0] != sealedVersion {
		return Text{}, ErrSealed
	}
	value, err := s.aead.Open(nil, nil, sealed[1:], []byte(place))
	if err != nil {
		return Text{}, ErrSealed
	}
	return NewText(string(value)), nil
}

// NewKey makes a random key for NewSealer.
func NewKey() Text {
	raw := make([]byte, keyBytes)
	_, _ = rand.Read(raw) // never returns an error since Go 1.24
	return NewText(base64.StdEncoding.EncodeToString(raw))
}

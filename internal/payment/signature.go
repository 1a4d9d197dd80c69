// Package payment is the Stripe adapter: it verifies what Stripe signed and turns Stripe's payloads, of any API
// version we know, into our own words. It is the only importer of stripe-go.
package payment

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v76/webhook"
)

const (
	// SignatureTolerance is how far the time in a signature may lie from our clock, on either side. stripe-go checks
	// only the past, so a capture dated a year ahead would stay replayable for a year.
	SignatureTolerance = 300 * time.Second
	// MinSecretLength is the shortest webhook secret, in bytes, that is used as a key. An empty key would accept
	// events that anybody forged.
	MinSecretLength = 24
)

// Reasons why Verify refuses a request. None of them carries the body, the header or a secret.
var (
	// ErrNoSignature: the header is missing, or has no time or no v1 value.
	ErrNoSignature = errors.New("no usable Stripe-Signature header")
	// ErrBadSignature: no v1 value fits the body under any of the secrets.
	ErrBadSignature = errors.New("signature does not match any webhook secret")
	// ErrTimestamp: the signature fits, but its time is more than SignatureTolerance away from now.
	ErrTimestamp = errors.New("signature time is more than 300 s away")
)

// Verify checks a Stripe-Signature header against the raw bytes of a request. Any secret and any v1 value of the header
// may fit, so that secrets can be rotated. A secret shorter than MinSecretLength is never used. The fingerprint is the
// first 8 hex digits of the SHA-256 of the secret that fitted: counted, it tells when an old secret is idle.
// The signature is checked before its time, so ErrTimestamp is only ever said about a time that Stripe signed.
func Verify(body []byte, header string, secrets []string, now time.Time) (fingerprint string, err error) {
	at, signatures, err := parseSignature(header)
	if err != nil {
		return "", err
	}
	for _, secret := range secrets {
		if len(strings.TrimSpace(secret)) < MinSecretLength || !signedBy(secret, body, at, signatures) {
			continue
		}
		if away := now.Sub(at); away > SignatureTolerance || away < -SignatureTolerance {
			return "", ErrTimestamp
		}
		return Fingerprint(secret), nil
	}
	return "", ErrBadSignature
}

// Fingerprint names a webhook secret without telling it: the first 8 hex digits of its SHA-256.
func Fingerprint(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:4])
}

// parseSignature reads "t=1700000000,v1=<hex>,v1=<hex>,v0=<hex>". Parts it does not know are skipped: Stripe adds schemes.
func parseSignature(header string) (at time.Time, signatures [][]byte, err error) {
	var seconds int64
	var hasTime, hasSignature bool
	for part := range strings.SplitSeq(header, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch key {
		case "t":
			seconds, err = strconv.ParseInt(value, 10, 64)
			if err != nil {
				return time.Time{}, nil, fmt.Errorf("%w: its time is not a number", ErrNoSignature)
			}
			hasTime = true
		case "v1":
			hasSignature = true
			if signature, err := hex.DecodeString(value); err == nil {
				signatures = append(signatures, signature)
			}
		}
	}
	if !hasTime || !hasSignature {
		return time.Time{}, nil, ErrNoSignature
	}
	return time.Unix(seconds, 0), signatures, nil
}

func signedBy(secret string, body []byte, at time.Time, signatures [][]byte) bool {
	want := webhook.ComputeSignature(at, body, secret)
	for _, signature := range signatures {
		if hmac.Equal(want, signature) {
			return true
		}
	}
	return false
}

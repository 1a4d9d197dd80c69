package webhook

import (
	"crypto/rand"
	"encoding/base64"

	"termkeeper/internal/secret"
)

// secretBytes is inside the 24 to 64 bytes that the specification asks for.
const secretBytes = 32

// NewSecret makes the secret of an endpoint as Standard Webhooks writes it: whsec_ and base64.
func NewSecret() secret.Text {
	raw := make([]byte, secretBytes)
	_, _ = rand.Read(raw) // never returns an error since Go 1.24
	return secret.NewText("whsec_" + base64.StdEncoding.EncodeToString(raw))
}

// Place is what the secret of an endpoint is sealed for: one that was copied to another row does not open there.
func Place(endpointID string) string { return "webhook_endpoints:" + endpointID }

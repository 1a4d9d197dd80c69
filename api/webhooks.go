package api

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"termkeeper/internal/intake"
	"termkeeper/internal/payment"
	"termkeeper/internal/telemetry"
)

// webhookDeadline is how long storing an event may take before the provider is told to come again.
const webhookDeadline = 8 * time.Second

// Webhooks is what the routes of a payment provider need, and those of the calls that go out.
type Webhooks struct {
	Intake   *intake.Intake
	Secrets  []string // any of them may have signed
	Provider Provider
	Outgoing Endpoints
}

// fingerprints name the secrets without telling them.
func (w Webhooks) fingerprints() []string {
	names := make([]string, len(w.Secrets))
	for i, secret := range w.Secrets {
		names[i] = payment.Fingerprint(secret)
	}
	return names
}

type webhookRoutes struct {
	Webhooks
	metrics *telemetry.Metrics
}

// stripe takes a signed event. It answers 200 only once the event is committed.
func (w webhookRoutes) stripe(c echo.Context) error {
	body, err := io.ReadAll(c.Request().Body)
	if err != nil {
		err = unreadable(err)
		if problemOf(err).Status == http.StatusRequestEntityTooLarge {
			w.count("", telemetry.WebhookTooLarge)
		}
		return err
	}
	fingerprint, err := payment.Verify(body, c.Request().Header.Get("Stripe-Signature"), w.Secrets, time.Now())
	if err != nil {
		w.count("", telemetry.WebhookRefused)
		return problem(http.StatusBadRequest, signatureCode(err), "The event is not accepted: "+err.Error()+".")
	}
	w.metrics.SecretUsed(fingerprint, time.Now())
	event, err := payment.ParseEvent(body)
	if err != nil {
		w.count("", telemetry.WebhookRefused)
		return problem(http.StatusBadRequest, "malformed_event", "The signed body is no event: it must be a JSON object with an id.")
	}
	duplicate, err := w.Intake.Receive(c.Request().Context(), event, body)
	switch {
	case err != nil:
		w.count(event.Type, telemetry.WebhookNotStored)
		p := unavailable("not_stored", "The event could not be stored now; send it again.", "5")
		return errors.Join(p, err) // the client sees p, the log both
	case duplicate:
		w.count(event.Type, telemetry.WebhookDuplicate)
	default:
		w.count(event.Type, telemetry.WebhookStored)
		w.metrics.APIVersion(event.APIVersion)
	}
	return c.JSON(http.StatusOK, receipt{Received: true, Duplicate: duplicate})
}

type receipt struct {
	Received  bool `json:"received"`
	Duplicate bool `json:"duplicate"`
}

func (w webhookRoutes) count(eventType, outcome string) {
	w.metrics.WebhookReceived.WithLabelValues("stripe", telemetry.EventType(eventType), outcome).Inc()
}

func signatureCode(err error) string {
	if errors.Is(err, payment.ErrTimestamp) {
		return "signature_time"
	}
	return "bad_signature"
}

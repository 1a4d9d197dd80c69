package api

import (
	"encoding/json"
	"net/http"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"termkeeper/internal/intake"
	"termkeeper/internal/store"
)

type webhookEventRoutes struct {
	store  *store.Store
	intake *intake.Intake
}

type webhookEventJSON struct {
	ID              string          `json:"id"`
	Provider        string          `json:"provider"`
	ExternalEventID string          `json:"external_event_id"`
	Type            string          `json:"type"`
	APIVersion      *string         `json:"api_version"`
	Status          string          `json:"status"`
	Reason          *string         `json:"reason"`
	Attempts        int             `json:"attempts"`
	NextAttemptAt   stamp           `json:"next_attempt_at"`
	LastError       *string         `json:"last_error"`
	ReceivedAt      stamp           `json:"received_at"`
	ProcessedAt     stamp           `json:"processed_at"`
	Payload         json.RawMessage `json:"payload,omitempty"` // only of a single event
}

func showWebhookEvent(e store.WebhookEventState) webhookEventJSON {
	return webhookEventJSON{
		ID: e.ID, Provider: e.Provider, ExternalEventID: e.ExternalID, Type: e.Type, APIVersion: e.APIVersion, Status: e.Status, Reason: e.Reason,
		Attempts: e.Attempts, NextAttemptAt: stamp(e.NextAttemptAt), LastError: e.LastError, ReceivedAt: stamp(e.ReceivedAt), ProcessedAt: stampOf(e.ProcessedAt),
	}
}

// list is newest first: who looks wants to see what just came in.
func (w webhookEventRoutes) list(c echo.Context) error {
	filter := store.WebhookEventFilter{Status: c.QueryParam("status"), Type: c.QueryParam("type"), ExternalID: c.QueryParam("external_event_id")}
	var errs fieldErrors
	if filter.Status != "" {
		errs.oneOf("/status", filter.Status, "pending", "processed", "ignored", "quarantined", "failed")
	}
	errs.line("/type", filter.Type, maxID, false)
	errs.line("/external_event_id", filter.ExternalID, maxID, false)
	if err := errs.err(); err != nil {
		return err
	}
	list := filtered("webhook-events", filter.Status, filter.Type, filter.ExternalID)
	var position uuid.UUID
	limit, err := pageOf(c, list, &position)
	if err != nil {
		return err
	}
	before := ""
	if position != uuid.Nil {
		before = position.String()
	}
	events, err := w.store.WebhookEventStates(c.Request().Context(), filter, before, limit+1)
	if err != nil {
		return err
	}
	return answerPage(c, list, events, limit, func(e store.WebhookEventState) any { return e.ID },
		func(e store.WebhookEventState) any { return showWebhookEvent(e) })
}

func (w webhookEventRoutes) one(c echo.Context) error {
	id, err := pathID(c, "webhook event")
	if err != nil {
		return err
	}
	return w.answer(c, id)
}

// replay applies an event once more and waits for what becomes of it.
func (w webhookEventRoutes) replay(c echo.Context) error {
	id, err := pathID(c, "webhook event")
	if err != nil {
		return err
	}
	var in struct{}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	if err := w.intake.Replay(c.Request().Context(), id); err != nil {
		return err
	}
	return w.answer(c, id)
}

func (w webhookEventRoutes) answer(c echo.Context, id string) error {
	event, payload, err := w.store.WebhookEventState(c.Request().Context(), id)
	if err != nil {
		return err
	}
	shown := showWebhookEvent(event)
	switch {
	case len(payload) == 0: // past its retention
		shown.Payload = json.RawMessage("null")
	case json.Valid(payload):
		shown.Payload = payload
	default: // a row that was seeded by hand
		if shown.Payload, err = json.Marshal(string(payload)); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, shown)
}

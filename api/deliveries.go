package api

import (
	"errors"
	"net/http"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"termkeeper/internal/store"
)

type deliveryRoutes struct {
	store *store.Store
}

type deliveryJSON struct {
	ID             string  `json:"id"`
	OutboxID       string  `json:"outbox_id"`
	Channel        string  `json:"channel"`
	Target         string  `json:"target"`
	URL            *string `json:"url"`
	Topic          string  `json:"topic"`
	SubscriptionID *string `json:"subscription_id"`
	UserID         *string `json:"user_id"`
	Status         string  `json:"status"`
	Attempts       int     `json:"attempts"`
	NextAttemptAt  stamp   `json:"next_attempt_at"`
	LastError      *string `json:"last_error"`
	ResponseStatus *int    `json:"response_status"`
	MessageID      string  `json:"message_id"`
	CreatedAt      stamp   `json:"created_at"`
	FinishedAt     stamp   `json:"finished_at"`
}

func showDelivery(d store.DeliveryState) deliveryJSON {
	return deliveryJSON{
		ID: d.ID, OutboxID: d.OutboxID, Channel: d.Channel, Target: d.Target, URL: d.URL, Topic: d.Topic, SubscriptionID: d.SubscriptionID, UserID: d.UserID,
		Status: d.Status, Attempts: d.Attempts, NextAttemptAt: stamp(d.NextAttemptAt), LastError: d.LastError, ResponseStatus: d.ResponseStatus, MessageID: d.MessageID,
		CreatedAt: stamp(d.CreatedAt), FinishedAt: stampOf(d.FinishedAt),
	}
}

// list is newest first.
func (d deliveryRoutes) list(c echo.Context) error {
	filter := store.DeliveryFilter{Status: c.QueryParam("status"), Channel: c.QueryParam("channel")}
	var errs fieldErrors
	if filter.Status != "" {
		errs.oneOf("/status", filter.Status, "pending", "sending", "sent", "superseded", "dead")
	}
	if filter.Channel != "" {
		errs.oneOf("/channel", filter.Channel, "email", "webhook")
	}
	if err := errs.err(); err != nil {
		return err
	}
	list := filtered("deliveries", filter.Status, filter.Channel)
	var position uuid.UUID
	limit, err := pageOf(c, list, &position)
	if err != nil {
		return err
	}
	before := ""
	if position != uuid.Nil {
		before = position.String()
	}
	rows, err := d.store.DeliveryStates(c.Request().Context(), filter, before, limit+1)
	if err != nil {
		return err
	}
	return answerPage(c, list, rows, limit, func(d store.DeliveryState) any { return d.ID }, func(d store.DeliveryState) any { return showDelivery(d) })
}

func (d deliveryRoutes) one(c echo.Context) error {
	id, err := pathID(c, "delivery")
	if err != nil {
		return err
	}
	found, err := d.store.DeliveryState(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, showDelivery(found))
}

// retry lets a dead delivery be tried again, or a webhook that was sent be sent once more.
func (d deliveryRoutes) retry(c echo.Context) error {
	id, err := pathID(c, "delivery")
	if err != nil {
		return err
	}
	var in struct{}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	ctx := answers(c, func(revived store.DeliveryState) (int, any) { return http.StatusOK, showDelivery(revived) })
	revived, err := d.store.ReviveDelivery(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotDead):
		return problem(http.StatusConflict, "not_dead", "Only a dead delivery or a webhook that was sent can be tried again; this one is on its way, arrived or no longer wanted.")
	case errors.Is(err, store.ErrEndpointOff):
		return problem(http.StatusConflict, "endpoint_disabled", "The endpoint of this delivery is disabled or deleted, so nothing is sent to it.")
	case err != nil:
		return err
	}
	return c.JSON(http.StatusOK, showDelivery(revived))
}

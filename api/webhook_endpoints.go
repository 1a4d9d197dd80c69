package api

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"termkeeper/internal/secret"
	"termkeeper/internal/store"
	"termkeeper/internal/webhook"
)

const (
	maxTopics = 50
	// secretOverlap is how long the secret before a rotation signs too.
	secretOverlap = 24 * time.Hour
)

// Endpoints is what the routes of outgoing webhooks need.
type Endpoints struct {
	Sealer       *secret.Sealer // nil where no key is configured: then no endpoint can be made
	AllowPrivate bool           // http and private addresses are taken too
}

type endpointRoutes struct {
	Endpoints
	store *store.Store
}

type endpointJSON struct {
	ID                  string   `json:"id"`
	URL                 string   `json:"url"`
	Topics              []string `json:"topics"`
	Status              string   `json:"status"`
	DisabledReason      *string  `json:"disabled_reason"`
	DisabledAt          stamp    `json:"disabled_at"`
	FailingSince        stamp    `json:"failing_since"`
	PausedUntil         stamp    `json:"paused_until"`
	LastError           *string  `json:"last_error"`
	PreviousSecretUntil stamp    `json:"previous_secret_until"`
	CreatedAt           stamp    `json:"created_at"`
	UpdatedAt           stamp    `json:"updated_at"`
	// Secret is there once: in the answer that made it. The answer that is kept for an Idempotency-Key is without it, because
	// it would lie in the database in the clear.
	Secret string `json:"secret,omitempty"`
}

func showEndpoint(e store.WebhookEndpoint) endpointJSON {
	return endpointJSON{
		ID: e.ID, URL: e.URL, Topics: e.Topics, Status: e.Status, DisabledReason: optional(e.DisabledReason), DisabledAt: stamp(e.DisabledAt),
		FailingSince: stamp(e.FailingSince), PausedUntil: stamp(e.PausedUntil), LastError: optional(e.LastError),
		PreviousSecretUntil: stamp(e.PreviousUntil), CreatedAt: stamp(e.CreatedAt), UpdatedAt: stamp(e.UpdatedAt),
	}
}

// endpointIn is the body of a creation and of a change. What is absent in a change stays as it is.
type endpointIn struct {
	URL    *string   `json:"url"`
	Topics *[]string `json:"topics"`
	Status *string   `json:"status"`
}

// into writes the fields that were given over the endpoint.
func (in endpointIn) into(e *store.WebhookEndpoint, present given, allowPrivate bool) error {
	var errs fieldErrors
	if present["url"] {
		e.URL = orZero(in.URL)
		if err := webhook.CheckURL(e.URL, allowPrivate); err != nil {
			errs.add("/url", err.Error())
		}
	}
	if present["topics"] {
		e.Topics = orZero(in.Topics)
		errs.topics(e.Topics)
	}
	if present["status"] {
		e.Status = orZero(in.Status)
		errs.oneOf("/status", e.Status, store.EndpointEnabled, store.EndpointDisabled)
	}
	return errs.err()
}

func (e *fieldErrors) topics(topics []string) {
	switch {
	case len(topics) == 0:
		e.add("/topics", "must name at least one topic; * is all of them")
	case len(topics) > maxTopics:
		e.add("/topics", "has too many entries, 50 are the most")
		return
	}
	for i, topic := range topics {
		at := "/topics/" + strconv.Itoa(i)
		switch {
		case !webhook.ValidTopic(topic):
			e.add(at, "must be a topic like access.ended, a prefix like access.*, or *")
		case slices.Contains(topics[:i], topic):
			e.add(at, "is there twice")
		}
	}
}

// sealed makes a secret for the endpoint.
func (r endpointRoutes) sealed(id string) (secret.Text, []byte, error) {
	if r.Sealer == nil {
		return secret.Text{}, nil, unavailable("no_secret_key", "TERMKEEPER_SECRET_KEY is not set, so the secret of an endpoint cannot be kept.", "60")
	}
	made := webhook.NewSecret()
	return made, r.Sealer.Seal(made, webhook.Place(id)), nil
}

func (r endpointRoutes) create(c echo.Context) error {
	var in endpointIn
	present, err := bind(c, &in)
	if err != nil {
		return err
	}
	if present["status"] {
		return invalid(FieldError{"/status", "cannot be given; a new endpoint is enabled"})
	}
	present["url"], present["topics"] = true, true
	e := store.WebhookEndpoint{ID: store.NewID()}
	if err := in.into(&e, present, r.AllowPrivate); err != nil {
		return err
	}
	made, sealed, err := r.sealed(e.ID)
	if err != nil {
		return err
	}
	e.Secret = sealed
	ctx := answers(c, func(written store.WebhookEndpoint) (int, any) { return http.StatusCreated, showEndpoint(written) })
	written, err := r.store.CreateWebhookEndpoint(ctx, e)
	switch {
	case errors.Is(err, store.ErrTooManyEndpoints):
		return problem(http.StatusConflict, "too_many_endpoints", "There are 200 webhook endpoints already; delete one that is not needed.")
	case err != nil:
		return err
	}
	shown := showEndpoint(written)
	shown.Secret = made.Reveal()
	return c.JSON(http.StatusCreated, shown)
}

// list is oldest first.
func (r endpointRoutes) list(c echo.Context) error {
	const list = "webhook endpoints"
	var position uuid.UUID
	limit, err := pageOf(c, list, &position)
	if err != nil {
		return err
	}
	after := ""
	if position != uuid.Nil {
		after = position.String()
	}
	rows, err := r.store.WebhookEndpoints(c.Request().Context(), after, limit+1)
	if err != nil {
		return err
	}
	return answerPage(c, list, rows, limit, func(e store.WebhookEndpoint) any { return e.ID }, func(e store.WebhookEndpoint) any { return showEndpoint(e) })
}

func (r endpointRoutes) one(c echo.Context) error {
	id, err := pathID(c, "webhook endpoint")
	if err != nil {
		return err
	}
	found, err := r.store.WebhookEndpoint(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, showEndpoint(found))
}

func (r endpointRoutes) change(c echo.Context) error {
	id, err := pathID(c, "webhook endpoint")
	if err != nil {
		return err
	}
	var in endpointIn
	present, err := bind(c, &in)
	if err != nil {
		return err
	}
	ctx := answers(c, func(written store.WebhookEndpoint) (int, any) { return http.StatusOK, showEndpoint(written) })
	written, err := r.store.ChangeWebhookEndpoint(ctx, id, func(e *store.WebhookEndpoint) error { return in.into(e, present, r.AllowPrivate) })
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, showEndpoint(written))
}

// remove answers with the endpoint as it was, and its status.
func (r endpointRoutes) remove(c echo.Context) error {
	id, err := pathID(c, "webhook endpoint")
	if err != nil {
		return err
	}
	var in struct{}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	ctx := answers(c, func(gone store.WebhookEndpoint) (int, any) { return http.StatusOK, showEndpoint(gone) })
	gone, err := r.store.DeleteWebhookEndpoint(ctx, id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, showEndpoint(gone))
}

// rotate gives the endpoint a new secret.
func (r endpointRoutes) rotate(c echo.Context) error {
	id, err := pathID(c, "webhook endpoint")
	if err != nil {
		return err
	}
	var in struct{}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	made, sealed, err := r.sealed(id)
	if err != nil {
		return err
	}
	ctx := answers(c, func(written store.WebhookEndpoint) (int, any) { return http.StatusOK, showEndpoint(written) })
	written, err := r.store.RotateWebhookSecret(ctx, id, sealed, secretOverlap)
	if err != nil {
		return err
	}
	shown := showEndpoint(written)
	shown.Secret = made.Reveal()
	return c.JSON(http.StatusOK, shown)
}

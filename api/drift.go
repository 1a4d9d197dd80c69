package api

import (
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

type driftRoutes struct {
	store *store.Store
}

type driftJSON struct {
	ID             string            `json:"id"`
	Kind           string            `json:"kind"`
	Action         string            `json:"action"`
	ExternalID     string            `json:"external_id"`
	SubscriptionID *string           `json:"subscription_id"`
	UserID         *string           `json:"user_id"`
	EventID        *string           `json:"event_id"`
	Ours           map[string]string `json:"ours"`
	Theirs         map[string]string `json:"theirs"`
	Cause          *string           `json:"cause"`
	Reason         *string           `json:"reason"`
	FoundAt        stamp             `json:"found_at"`
	SeenAt         stamp             `json:"seen_at"`
	ResolvedAt     stamp             `json:"resolved_at"`
}

func showDrift(f store.Finding) driftJSON {
	return driftJSON{
		ID: f.ID, Kind: f.Kind, Action: f.Action, ExternalID: f.ExternalID, SubscriptionID: optional(f.SubscriptionID), UserID: optional(f.UserID),
		EventID: optional(f.EventID), Ours: f.Ours, Theirs: f.Theirs, Cause: optional(f.Cause), Reason: optional(f.Reason),
		FoundAt: stamp(f.FoundAt), SeenAt: stamp(f.SeenAt), ResolvedAt: stamp(f.ResolvedAt),
	}
}

// list is newest first.
func (d driftRoutes) list(c echo.Context) error {
	filter := store.FindingFilter{Kind: c.QueryParam("kind"), Action: c.QueryParam("action")}
	var errs fieldErrors
	if filter.Kind != "" {
		var kinds []string
		for _, kind := range subscription.DriftKinds() {
			kinds = append(kinds, string(kind))
		}
		errs.oneOf("/kind", filter.Kind, kinds...)
	}
	if filter.Action != "" {
		errs.oneOf("/action", filter.Action, store.DriftRepaired, store.DriftQuarantined, store.DriftNone)
	}
	for name, to := range map[string]*time.Time{"from": &filter.From, "to": &filter.To} {
		if text := c.QueryParam(name); text != "" {
			at, detail := parseInstant(text)
			if detail != "" {
				errs.add("/"+name, detail)
			}
			*to = at
		}
	}
	if err := errs.err(); err != nil {
		return err
	}
	list := filtered("drift", filter.Kind, filter.Action, c.QueryParam("from"), c.QueryParam("to"))
	var position uuid.UUID
	limit, err := pageOf(c, list, &position)
	if err != nil {
		return err
	}
	before := ""
	if position != uuid.Nil {
		before = position.String()
	}
	rows, err := d.store.Findings(c.Request().Context(), filter, before, limit+1)
	if err != nil {
		return err
	}
	return answerPage(c, list, rows, limit, func(f store.Finding) any { return f.ID }, func(f store.Finding) any { return showDrift(f) })
}

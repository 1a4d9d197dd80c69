package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"termkeeper/internal/payment"
	"termkeeper/internal/settlement"
	"termkeeper/internal/store"
	"termkeeper/internal/subscription"
)

// atProvider is the deadline of a route that may change something at the payment provider: one question and one change,
// with their own time-outs of 5 s and 10 s, and two short transactions.
const atProvider = 20 * time.Second

// Provider is what changes at the payment provider need.
type Provider struct {
	Client *payment.Client     // nil where no key is configured: such changes are then refused
	Leeway time.Duration       // how long the news of a renewal may take
	Orders *settlement.Settler // what is paid once
}

// providerAction is one change of a subscription that the provider owns.
type providerAction struct {
	name string
	// allowed says whether our row speaks against it, before the provider is asked.
	allowed func(subscription.Subscription) error
	do      func(ctx context.Context, externalID, key string) (payment.Answer, error)
	// made says whether the row is as the change leaves it.
	made func(subscription.Subscription) bool
}

// providerOwns reads the subscription of the path, and tells whether its terms are the provider's.
func (s subscriptionRoutes) providerOwns(c echo.Context) (row subscription.Subscription, owns bool, err error) {
	id, err := pathID(c, "subscription")
	if err != nil {
		return row, false, err
	}
	row, err = s.store.Subscription(c.Request().Context(), id)
	return row, err == nil && !row.Ours(), err
}

// askProvider makes the change at the provider, outside of any transaction, and applies its answer. The news of the change,
// which comes by webhook too, then tells nothing new.
func (s subscriptionRoutes) askProvider(c echo.Context, row subscription.Subscription, a providerAction) error {
	if s.provider.Client == nil {
		return subscription.ErrProviderOwned
	}
	if err := a.allowed(row); err != nil && (!repeated(c) || !a.made(row)) {
		return err
	} else if err != nil {
		a.do = s.look
	}
	ctx := answers(c, func(after subscription.Subscription) (int, any) { return http.StatusOK, showSubscription(after) })
	const tries = 4
	for try := 1; ; try++ {
		began := time.Now()
		answer, err := a.do(ctx, row.ExternalID, providerKey(c, row, a.name))
		if err != nil {
			return s.notChanged(ctx, row, err)
		}
		after, skip, err := s.store.ApplyTruth(ctx, store.Truth{
			Provider: answer.Provider, Asked: answer.Asked, Began: began, Version: row.Version, Actor: who(c).actor(),
		}, s.provider.Leeway)
		if err != nil {
			return err
		}
		if skip != subscription.SkipStale || try == tries {
			return c.JSON(http.StatusOK, showSubscription(after))
		}
		row, a.do = after, s.look // it heard of something newer meanwhile: the change is made, the provider says how things are now
	}
}

// repeated reports whether the same request came before and got no answer. Where the row is as it would leave it, what stands
// in its way is its own effect, which the webhook has told of meanwhile: the provider is asked how the subscription is.
func repeated(c echo.Context) bool { return store.KeyClaimOf(c.Request().Context()).Again() }

// look changes nothing.
func (s subscriptionRoutes) look(ctx context.Context, id, _ string) (payment.Answer, error) {
	provider, asked, err := s.provider.Client.Subscription(ctx, id)
	return payment.Answer{Provider: provider, Asked: asked}, err
}

// notChanged says what became of a change that the provider did not confirm. Where there is no answer the change may have
// been made, so the row is marked: the next reconciliation asks.
func (s subscriptionRoutes) notChanged(ctx context.Context, row subscription.Subscription, err error) error {
	var refused *payment.RefusalError
	if errors.As(err, &refused) {
		p := problem(http.StatusConflict, "provider_refused", "The payment provider refused: "+refused.Message)
		return errors.Join(p, err)
	}
	var silent *payment.NoAnswerError
	if !errors.As(err, &silent) {
		return err
	}
	marking, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	marked := s.store.MarkForReconcile(marking, row.ExternalID)
	wait := max(silent.RetryAfter, 5*time.Second)
	p := unavailable("provider_unavailable", "The payment provider gave no answer, so it is not known whether the change was made. Send the same request again with the same Idempotency-Key.",
		strconv.Itoa(int(wait/time.Second)))
	return errors.Join(p, err, marked)
}

// providerKey is the key by which the provider knows a repeated change: the caller's own where one is given, else one for this
// change of this version of the row.
func providerKey(c echo.Context, row subscription.Subscription, action string) string {
	scope := strconv.FormatInt(row.Version, 10)
	if key := c.Request().Header.Get(headerKey); key != "" {
		sum := sha256.Sum256([]byte(who(c).id + "\n" + key))
		scope = hex.EncodeToString(sum[:16])
	}
	return "termkeeper:" + row.ID + ":" + action + ":" + scope
}

package api

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"termkeeper/internal/intake"
	"termkeeper/internal/store"
)

const (
	maxPlanEntries = 200                        // features or prices of one plan
	maxTerm        = 100 * 365 * 24 * time.Hour // of one term; whoever wants more wants a lifetime
)

type planRoutes struct {
	store  *store.Store
	intake *intake.Intake
}

type planJSON struct {
	Key            string     `json:"key"`
	Name           string     `json:"name"`
	Features       []string   `json:"features"`
	StripePriceIDs []string   `json:"stripe_price_ids"`
	Price          *priceJSON `json:"price"`
	Duration       *string    `json:"duration"`
	Lifetime       bool       `json:"lifetime"`
	GracePeriod    string     `json:"grace_period"`
	RefundPolicy   string     `json:"refund_policy"`
	CreatedAt      stamp      `json:"created_at"`
	UpdatedAt      stamp      `json:"updated_at"`
}

type priceJSON struct {
	Amount   *int64 `json:"amount"` // minor units
	Currency string `json:"currency"`
}

func showPlan(p store.Plan) planJSON {
	shown := planJSON{
		Key: p.Key, Name: p.Name, Features: p.Features, StripePriceIDs: p.StripePriceIDs, GracePeriod: shortDuration(p.GracePeriod),
		Lifetime: p.Lifetime, RefundPolicy: p.RefundPolicy, CreatedAt: stamp(p.CreatedAt), UpdatedAt: stamp(p.UpdatedAt),
	}
	if p.Price != nil {
		shown.Price = &priceJSON{Amount: &p.Price.Amount, Currency: p.Price.Currency}
	}
	if p.Duration > 0 {
		shown.Duration = optional(shortDuration(p.Duration))
	}
	return shown
}

// planIn is the body of a creation and of a change. In a change a field that is absent stays as it is, and one that is
// null goes back to what it is in a new plan.
type planIn struct {
	Key            *string        `json:"key"`
	Name           *string        `json:"name"`
	Features       *[]string      `json:"features"`
	StripePriceIDs *[]string      `json:"stripe_price_ids"`
	Price          *priceJSON     `json:"price"`
	Duration       *time.Duration `json:"duration"`
	Lifetime       *bool          `json:"lifetime"`
	GracePeriod    *time.Duration `json:"grace_period"`
	RefundPolicy   *string        `json:"refund_policy"`
}

// into writes the fields that were given over the plan.
func (in planIn) into(p *store.Plan, present given) error {
	var errs fieldErrors
	if present["name"] {
		p.Name = orZero(in.Name)
		errs.line("/name", p.Name, maxText, false)
	}
	if present["features"] {
		p.Features = orZero(in.Features)
		errs.entries("/features", p.Features)
	}
	if present["stripe_price_ids"] {
		p.StripePriceIDs = orZero(in.StripePriceIDs)
		errs.entries("/stripe_price_ids", p.StripePriceIDs)
	}
	if present["price"] {
		p.Price = in.Price.read(&errs)
	}
	if present["duration"] {
		p.Duration = orZero(in.Duration)
		if in.Duration != nil && (p.Duration <= 0 || p.Duration > maxTerm) {
			errs.add("/duration", "must be more than 0s and at most 876000h")
		}
	}
	if present["lifetime"] {
		p.Lifetime = orZero(in.Lifetime)
	}
	if p.Lifetime && p.Duration > 0 {
		errs.add("/lifetime", "and duration exclude each other; set duration to null for a lifetime")
	}
	if present["grace_period"] {
		p.GracePeriod = orZero(in.GracePeriod)
		if p.GracePeriod < 0 || p.GracePeriod > maxTerm {
			errs.add("/grace_period", "must be at least 0s and at most 876000h")
		}
	}
	if present["refund_policy"] {
		p.RefundPolicy = defaultRefundPolicy
		if in.RefundPolicy != nil {
			p.RefundPolicy = *in.RefundPolicy
		}
		errs.oneOf("/refund_policy", p.RefundPolicy, "keep", "end")
	}
	return errs.err()
}

const defaultRefundPolicy = "keep"

// currencyPattern is the shape of a code of ISO 4217.
var currencyPattern = regexp.MustCompile(`^[A-Z]{3}$`)

func (in *priceJSON) read(errs *fieldErrors) *store.Price {
	if in == nil {
		return nil
	}
	if in.Amount == nil || *in.Amount < 0 {
		errs.add("/price/amount", "must be a whole number of minor units, 0 or more")
	}
	currency := strings.ToUpper(in.Currency)
	if !currencyPattern.MatchString(currency) {
		errs.add("/price/currency", "must be a currency of ISO 4217 like USD")
	}
	return &store.Price{Amount: orZero(in.Amount), Currency: currency}
}

// entries demands different, non-empty lines.
func (e *fieldErrors) entries(pointer string, list []string) {
	if len(list) > maxPlanEntries {
		e.add(pointer, "has too many entries, 200 are the most")
		return
	}
	seen := map[string]bool{}
	for i, entry := range list {
		at := pointer + "/" + strconv.Itoa(i)
		e.line(at, entry, maxID, true)
		if seen[entry] {
			e.add(at, "is there twice")
		}
		seen[entry] = true
	}
}

// planKeyPattern keeps keys easy to write in a URL.
var planKeyPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func (p planRoutes) create(c echo.Context) error {
	var in planIn
	present, err := bind(c, &in)
	if err != nil {
		return err
	}
	plan := store.Plan{Key: orZero(in.Key), RefundPolicy: defaultRefundPolicy}
	if !planKeyPattern.MatchString(plan.Key) {
		return invalid(FieldError{"/key", "must be 1 to 64 letters, digits, dots, dashes and underscores"})
	}
	if err := in.into(&plan, present); err != nil {
		return err
	}
	ctx := answers(c, func(written store.Plan) (int, any) { return http.StatusCreated, showPlan(written) })
	written, err := p.store.CreatePlan(ctx, plan)
	if err != nil {
		return err
	}
	p.intake.Heal() // events may wait for its prices
	return c.JSON(http.StatusCreated, showPlan(written))
}

// pathKey is the key in the path.
func pathKey(c echo.Context) (string, error) {
	key := pathText(c, "key")
	var errs fieldErrors
	errs.line("/key", key, maxID, true)
	return key, errs.err()
}

func (p planRoutes) change(c echo.Context) error {
	key, err := pathKey(c)
	if err != nil {
		return err
	}
	var in planIn
	present, err := bind(c, &in)
	if err != nil {
		return err
	}
	if present["key"] {
		return invalid(FieldError{"/key", "cannot be changed; subscriptions name it"})
	}
	ctx := answers(c, func(written store.Plan) (int, any) { return http.StatusOK, showPlan(written) })
	written, err := p.store.ChangePlan(ctx, key, func(plan *store.Plan) error { return in.into(plan, present) })
	if err != nil {
		return err
	}
	p.intake.Heal()
	return c.JSON(http.StatusOK, showPlan(written))
}

func (p planRoutes) one(c echo.Context) error {
	key, err := pathKey(c)
	if err != nil {
		return err
	}
	plan, err := p.store.Plan(c.Request().Context(), key)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, showPlan(plan))
}

func (p planRoutes) list(c echo.Context) error {
	const list = "plans"
	var after string
	limit, err := pageOf(c, list, &after)
	if err != nil {
		return err
	}
	plans, err := p.store.Plans(c.Request().Context(), after, limit+1)
	if err != nil {
		return err
	}
	return answerPage(c, list, plans, limit, func(p store.Plan) any { return p.Key }, func(p store.Plan) any { return showPlan(p) })
}

func orZero[T any](v *T) T {
	if v == nil {
		var zero T
		return zero
	}
	return *v
}

package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"termkeeper/internal/order"
	"termkeeper/internal/payment"
	"termkeeper/internal/settlement"
	"termkeeper/internal/store"
)

type orderRoutes struct {
	store   *store.Store
	settler *settlement.Settler
}

type orderJSON struct {
	ID                string             `json:"id"`
	UserID            string             `json:"user_id"`
	Plan              string             `json:"plan"`
	Status            string             `json:"status"`
	Amount            int64              `json:"amount"`
	Currency          string             `json:"currency"`
	LatePayment       string             `json:"late_payment"`
	ExpiresAt         stamp              `json:"expires_at"`
	PaidAt            stamp              `json:"paid_at"`
	FinishedAt        stamp              `json:"finished_at"`
	CheckoutURL       *string            `json:"checkout_url"`
	ProviderSessionID *string            `json:"provider_session_id"`
	SubscriptionID    *string            `json:"subscription_id"`
	Reason            *string            `json:"reason"`
	Attempts          int                `json:"attempts"`
	AskedAt           stamp              `json:"asked_at"`
	LastError         *string            `json:"last_error"`
	Payments          []orderPaymentJSON `json:"payments"`
	CreatedAt         stamp              `json:"created_at"`
	UpdatedAt         stamp              `json:"updated_at"`
}

type orderPaymentJSON struct {
	ID         string  `json:"id"`
	ChargeID   *string `json:"charge_id"`
	Amount     int64   `json:"amount"`
	Refunded   int64   `json:"refunded"`
	Currency   string  `json:"currency"`
	CapturedAt stamp   `json:"captured_at"`
	State      *string `json:"state"`
	Reason     *string `json:"reason"`
}

func showOrder(o order.Order, payments []order.Payment) orderJSON {
	shown := orderJSON{
		ID: o.ID, UserID: o.UserID, Plan: o.PlanKey, Status: string(o.Status), Amount: o.Amount, Currency: o.Currency, LatePayment: string(o.LatePayment),
		ExpiresAt: stamp(o.ExpiresAt), PaidAt: stamp(o.PaidAt), FinishedAt: stamp(o.FinishedAt), ProviderSessionID: optional(o.SessionID),
		SubscriptionID: optional(o.SubscriptionID), Reason: optional(o.Reason), Attempts: o.Attempts, AskedAt: stamp(o.AskedAt),
		LastError: optional(o.LastError), Payments: make([]orderPaymentJSON, len(payments)), CreatedAt: stamp(o.CreatedAt), UpdatedAt: stamp(o.UpdatedAt),
	}
	if o.Status == order.Pending { // nobody is to be sent to where nothing can be paid
		shown.CheckoutURL = optional(o.CheckoutURL)
	}
	for i, p := range payments {
		shown.Payments[i] = orderPaymentJSON{
			ID: p.ID, ChargeID: optional(p.ChargeID), Amount: p.Amount, Refunded: p.Refunded, Currency: p.Currency, CapturedAt: stamp(p.CapturedAt),
			State: optional(string(p.State)), Reason: optional(p.Reason),
		}
	}
	return shown
}

// answer writes an order with its payments.
func (r orderRoutes) answer(c echo.Context, status int, o order.Order) error {
	payments, err := r.store.OrderPayments(c.Request().Context(), o.ID)
	if err != nil {
		return err
	}
	return c.JSON(status, showOrder(o, payments))
}

const (
	minOrderLife = time.Second
	maxOrderLife = 24 * time.Hour
	// maxOrderAmount has twelve digits of minor units, which is more than the provider takes in any currency.
	maxOrderAmount = 999_999_999_999
	maxURL         = 2000 // characters
)

type orderIn struct {
	UserID      string         `json:"user_id"`
	Plan        string         `json:"plan"`
	Amount      *int64         `json:"amount"`
	Currency    *string        `json:"currency"`
	ExpiresIn   *time.Duration `json:"expires_in"`
	LatePayment *string        `json:"late_payment"`
	SuccessURL  *string        `json:"success_url"`
	CancelURL   *string        `json:"cancel_url"`
}

func (in orderIn) validate() error {
	var errs fieldErrors
	errs.line("/user_id", in.UserID, maxID, true)
	errs.line("/plan", in.Plan, maxID, true)
	if in.Amount != nil && (*in.Amount < 1 || *in.Amount > maxOrderAmount) {
		errs.add("/amount", "must be a whole number of minor units, from 1 to 999999999999")
	}
	if in.Currency != nil && !currencyPattern.MatchString(strings.ToUpper(*in.Currency)) {
		errs.add("/currency", "must be a currency of ISO 4217 like USD")
	}
	switch {
	case in.ExpiresIn == nil:
		errs.add("/expires_in", "is required")
	case *in.ExpiresIn < minOrderLife || *in.ExpiresIn > maxOrderLife:
		errs.add("/expires_in", "must be from 1s to 24h")
	}
	if in.LatePayment != nil {
		errs.oneOf("/late_payment", *in.LatePayment, policyNames()...)
	}
	errs.webAddress("/success_url", in.SuccessURL)
	errs.webAddress("/cancel_url", in.CancelURL)
	return errs.err()
}

func policyNames() []string {
	var names []string
	for _, p := range order.Policies() {
		names = append(names, string(p))
	}
	return names
}

// webAddress demands an address that a browser can be sent to.
func (e *fieldErrors) webAddress(pointer string, value *string) {
	if value == nil {
		return
	}
	e.line(pointer, *value, maxURL, true)
	at, err := url.Parse(*value)
	if err != nil || (at.Scheme != "https" && at.Scheme != "http") || at.Host == "" || at.User != nil {
		e.add(pointer, "must be an address like https://example.org/thanks")
	}
}

// price is what the order costs: what was asked for, else the plan's price.
func (in orderIn) price(plan store.Plan) (amount int64, currency string, err error) {
	if plan.Price != nil {
		amount, currency = plan.Price.Amount, plan.Price.Currency
	}
	asked := strings.ToUpper(orZero(in.Currency))
	switch {
	case in.Amount == nil && amount == 0:
		return 0, "", invalid(FieldError{"/amount", "is required, because the plan has no price"})
	case in.Amount == nil && asked != "" && asked != currency:
		return 0, "", invalid(FieldError{"/amount", "is required in another currency than that of the plan's price"})
	case in.Amount == nil:
		return amount, currency, nil
	case asked == "" && currency == "":
		return 0, "", invalid(FieldError{"/currency", "is required, because the plan has no price"})
	case asked == "":
		asked = currency
	}
	return *in.Amount, asked, nil
}

// create writes an order and makes its checkout. With an Idempotency-Key the order has the same id each time, so that a
// request that was cut off goes on where it was left.
func (r orderRoutes) create(c echo.Context) error {
	var in orderIn
	if _, err := bind(c, &in); err != nil {
		return err
	}
	if err := in.validate(); err != nil {
		return err
	}
	ctx := c.Request().Context()
	plan, err := r.store.Plan(ctx, in.Plan)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return store.ErrNoPlan
	case err != nil:
		return err
	case plan.Duration == 0 && !plan.Lifetime:
		return invalid(FieldError{"/plan", "has neither a duration nor a lifetime, so an order of it would sell no time"})
	}
	amount, currency, err := in.price(plan)
	if err != nil {
		return err
	}
	buyer, err := r.store.User(ctx, in.UserID) // needs no row
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	next := order.New{
		UserID: in.UserID, PlanKey: plan.Key, PlanName: plan.Name, Email: buyer.Email, Amount: amount, Currency: currency, Duration: plan.Duration,
		ExpiresIn: *in.ExpiresIn, LatePayment: order.LateFulfil, SuccessURL: orZero(in.SuccessURL), CancelURL: orZero(in.CancelURL), Actor: who(c).actor(),
	}
	if claim := store.KeyClaimOf(ctx); claim != nil {
		next.ID = claim.ObjectID()
	}
	if in.LatePayment != nil {
		next.LatePayment = order.Policy(*in.LatePayment)
	}
	if next.SuccessURL == "" {
		next.SuccessURL = (&url.URL{Scheme: c.Scheme(), Host: c.Request().Host, Path: thanksPath}).String()
	}
	made, err := r.settler.Create(ctx, next)
	switch {
	case err != nil:
		return orderProblem(err, "it is not known whether the checkout was made. Send the same request again with the same Idempotency-Key")
	case made.Status == order.Failed: // before this request, which comes again, got its answer
		return providerRefused(made.LastError)
	}
	return r.answer(c, http.StatusCreated, made)
}

// thanksPath is where a customer comes back to who paid an order that names no other place.
const thanksPath = "/checkout/thanks"

func thankCustomer(c echo.Context) error {
	return c.HTML(http.StatusOK, `<!doctype html><html lang="en"><meta charset="utf-8"><title>Thank you</title><p>Thank you. You can close this page.</p></html>`)
}

// list is by id, which is in the order of their making.
func (r orderRoutes) list(c echo.Context) error {
	filter := store.OrderFilter{UserID: c.QueryParam("user_id"), Status: c.QueryParam("status")}
	var errs fieldErrors
	errs.line("/user_id", filter.UserID, maxID, false)
	if filter.Status != "" {
		errs.oneOf("/status", filter.Status, statusNames()...)
	}
	if err := errs.err(); err != nil {
		return err
	}
	list := filtered("orders", filter.UserID, filter.Status)
	var position uuid.UUID
	limit, err := pageOf(c, list, &position)
	if err != nil {
		return err
	}
	after := ""
	if position != uuid.Nil {
		after = position.String()
	}
	ctx := c.Request().Context()
	rows, err := r.store.Orders(ctx, filter, after, limit+1)
	if err != nil {
		return err
	}
	ids := make([]string, len(rows))
	for i, o := range rows {
		ids[i] = o.ID
	}
	payments, err := r.store.PaymentsOfOrders(ctx, ids)
	if err != nil {
		return err
	}
	return answerPage(c, list, rows, limit, func(o order.Order) any { return o.ID }, func(o order.Order) any { return showOrder(o, payments[o.ID]) })
}

func statusNames() []string {
	var names []string
	for _, s := range order.Statuses() {
		names = append(names, string(s))
	}
	return names
}

// lookTime bounds the question that reading a pending order may ask.
const lookTime = 5 * time.Second

// one reads an order. A pending one is asked about at the provider, at most every few seconds; where that gives no answer the
// order is told as it is known.
func (r orderRoutes) one(c echo.Context) error {
	id, err := pathID(c, "order")
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	found, err := r.store.Order(ctx, id)
	if err != nil {
		return err
	}
	if found.Status == order.Pending {
		asking, cancel := context.WithTimeout(ctx, lookTime)
		_, _ = r.settler.Verify(asking, id, who(c).actor()) // the jobs ask again
		cancel()
		if found, err = r.store.Order(ctx, id); err != nil {
			return err
		}
	}
	return r.answer(c, http.StatusOK, found)
}

// verify asks the provider about an order and settles it by what it says.
func (r orderRoutes) verify(c echo.Context) error {
	return r.act(c, nil, "so the order is as it was", func(ctx context.Context, id string) (order.Order, error) {
		return r.settler.Verify(ctx, id, who(c).actor())
	})
}

// cancel closes the checkout of a pending order.
func (r orderRoutes) cancel(c echo.Context) error {
	return r.act(c, []order.Status{order.Canceled}, "so the order is canceled once it does, unless it was paid", func(ctx context.Context, id string) (order.Order, error) {
		return r.settler.Cancel(ctx, id, who(c).actor())
	})
}

// refund gives the money of a fulfilled order back.
func (r orderRoutes) refund(c echo.Context) error {
	return r.act(c, []order.Status{order.Refunding, order.Refunded}, "so the order is refunded once it does", func(ctx context.Context, id string) (order.Order, error) {
		return r.settler.Refund(ctx, id, who(c).actor())
	})
}

// act does something to the order of the path, with nothing in its body. repeatedAs are the statuses in which an order is when
// the same request has done it before and was cut off.
func (r orderRoutes) act(c echo.Context, repeatedAs []order.Status, silence string, do func(ctx context.Context, id string) (order.Order, error)) error {
	var in struct{}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	return r.acted(c, repeatedAs, silence, do)
}

func (r orderRoutes) acted(c echo.Context, repeatedAs []order.Status, silence string, do func(ctx context.Context, id string) (order.Order, error)) error {
	id, err := pathID(c, "order")
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	after, err := do(ctx, id)
	if errors.Is(err, order.ErrConflict) && repeated(c) {
		now, reading := r.store.Order(ctx, id)
		if reading != nil {
			return reading
		}
		if slices.Contains(repeatedAs, now.Status) {
			return r.answer(c, http.StatusOK, now)
		}
	}
	if errors.Is(err, settlement.ErrNoCheckout) { // then nobody has paid
		after, err = r.store.Order(ctx, id)
	}
	if err != nil {
		return orderProblem(err, silence)
	}
	return r.answer(c, http.StatusOK, after)
}

// resolve ends a review as a person decides.
func (r orderRoutes) resolve(c echo.Context) error {
	var in struct {
		As string `json:"as"`
	}
	if _, err := bind(c, &in); err != nil {
		return err
	}
	var errs fieldErrors
	errs.oneOf("/as", in.As, order.AsFulfilled, order.AsRefunded, order.AsCanceled)
	if err := errs.err(); err != nil {
		return err
	}
	leads := map[string][]order.Status{
		order.AsFulfilled: {order.Paid, order.Fulfilling, order.Fulfilled}, order.AsRefunded: {order.Refunding, order.Refunded}, order.AsCanceled: {order.Canceled},
	}
	return r.acted(c, leads[in.As], "so the order is settled once it does", func(ctx context.Context, id string) (order.Order, error) {
		return r.settler.Resolve(ctx, id, in.As, who(c).actor())
	})
}

// orderProblem tells what the provider or the rules of orders say against a request. silence says what follows from no answer.
func orderProblem(err error, silence string) error {
	var refused *payment.RefusalError
	var silent *payment.NoAnswerError
	switch {
	case errors.As(err, &refused):
		return errors.Join(providerRefused(refused.Message), err)
	case errors.As(err, &silent):
		wait := max(silent.RetryAfter, 5*time.Second)
		p := unavailable("provider_unavailable", "The payment provider gave no answer, "+silence+".", strconv.Itoa(int(wait/time.Second)))
		return errors.Join(p, err)
	}
	return err
}

func providerRefused(message string) *problemError {
	return problem(http.StatusConflict, "provider_refused", "The payment provider refused: "+message)
}

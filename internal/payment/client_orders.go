package payment

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v76"
)

// NewCheckout is what a checkout of an order is made of.
type NewCheckout struct {
	OrderID    string
	UserID     string
	Email      string // that the page begins with; "" where none is known
	PlanName   string // what the customer reads that they pay for
	Amount     int64  // minor units of Currency
	Currency   string // upper case, ISO 4217
	ExpiresAt  time.Time
	SuccessURL string
	CancelURL  string // "" where there is no way back
}

// checkoutSessions is the path of the checkouts.
const checkoutSessions = "/v1/checkout/sessions"

// maxReference is the longest client_reference_id that Stripe takes, in bytes. metadata takes longer ones.
const maxReference = 200

// paymentOfSession is what is needed beside the session: its payment, and what was given back of that.
const paymentOfSession = "payment_intent.latest_charge"

// CreateCheckout makes a checkout on which the amount is paid once. The error is a *RefusalError, ErrNoAnswer (it may have
// been made: FindCheckout tells), or that of ctx. key is Stripe's Idempotency-Key: the same key within a day makes one
// checkout, but repeats even the answer of a fault.
func (c *Client) CreateCheckout(ctx context.Context, in NewCheckout, key string) (CheckoutSession, error) {
	order := map[string]string{"order_id": in.OrderID}
	params := &stripe.CheckoutSessionParams{
		Mode: stripe.String("payment"),
		LineItems: []*stripe.CheckoutSessionLineItemParams{{
			Quantity: stripe.Int64(1),
			PriceData: &stripe.CheckoutSessionLineItemPriceDataParams{
				Currency: stripe.String(strings.ToLower(in.Currency)), UnitAmount: stripe.Int64(in.Amount),
				ProductData: &stripe.CheckoutSessionLineItemPriceDataProductDataParams{Name: stripe.String(in.PlanName)},
			},
		}},
		Metadata:          map[string]string{"order_id": in.OrderID, "user_id": in.UserID},
		PaymentIntentData: &stripe.CheckoutSessionPaymentIntentDataParams{Metadata: order},
		ExpiresAt:         stripe.Int64(in.ExpiresAt.Unix()), SuccessURL: stripe.String(in.SuccessURL),
	}
	if len(in.UserID) <= maxReference {
		params.ClientReferenceID = stripe.String(in.UserID)
	}
	if email := address(in.Email); email != "" {
		params.CustomerEmail = stripe.String(email)
	}
	if in.CancelURL != "" {
		params.CancelURL = stripe.String(in.CancelURL)
	}
	params.AddExpand(paymentOfSession)
	params.SetIdempotencyKey(key)
	answer, err := c.ask(ctx, http.MethodPost, checkoutSessions, actionTimeout, params)
	var no *RefusalError
	if errors.As(err, &no) && no.Code == codeKeyUsed { // an earlier call, with another end, may have made it
		return CheckoutSession{}, &NoAnswerError{Why: "the key was used for another checkout before"}
	}
	if err != nil {
		return CheckoutSession{}, err
	}
	made, err := ReadCheckoutSession(answer.raw)
	if err != nil || made.OrderID != in.OrderID {
		return CheckoutSession{}, &NoAnswerError{Why: "what came was not the checkout that was asked for"}
	}
	if answer.repeated {
		made, _, err = c.Checkout(ctx, made.ID)
	}
	return made, err
}

// Checkout fetches a checkout session with its payment. asked is the second in which the call began, by the provider's
// clock. The error is ErrNoAnswer, which may be ErrNotFound, or that of ctx.
func (c *Client) Checkout(ctx context.Context, id string) (session CheckoutSession, asked time.Time, err error) {
	params := &stripe.CheckoutSessionParams{}
	params.AddExpand(paymentOfSession)
	answer, err := c.look(ctx, checkoutSessions+"/"+url.PathEscape(id), params)
	if err != nil {
		return CheckoutSession{}, time.Time{}, err
	}
	session, err = theCheckout(answer, id)
	return session, answer.asked, err
}

func theCheckout(answer said, id string) (CheckoutSession, error) {
	session, err := ReadCheckoutSession(answer.raw)
	if err != nil || session.ID != id {
		return CheckoutSession{}, &NoAnswerError{Why: "what came was not the checkout that was asked about"}
	}
	return session, nil
}

// FindCheckout looks for the checkout of an order among those that were made since createdFrom, for one whose making was not
// answered. The error is ErrNotFound when the whole list was read and it is not there, ErrNoAnswer otherwise, or that of ctx.
func (c *Client) FindCheckout(ctx context.Context, orderID string, createdFrom time.Time) (CheckoutSession, error) {
	var session CheckoutSession
	err := c.everyPage(ctx, checkoutSessions, since(createdFrom, paymentOfSession), func(raw json.RawMessage) error {
		if !ofOrder(raw, orderID) {
			return nil
		}
		found, err := ReadCheckoutSession(raw)
		if err != nil {
			return &NoAnswerError{Why: "the checkout that was looked for cannot be read"}
		}
		session = found
		return errFound
	})
	switch {
	case errors.Is(err, errFound):
		return session, nil
	case err != nil:
		return CheckoutSession{}, err
	}
	return CheckoutSession{}, &NoAnswerError{Why: "it has no checkout of the order", NotFound: true}
}

// errFound ends the reading of a list.
var errFound = errors.New("found")

// since asks for the objects made since an instant, with more of each than its bare ids.
func since(at time.Time, expand string) map[string]string {
	return map[string]string{"created[gte]": strconv.FormatInt(max(at.Add(-listMargin).Unix(), 0), 10), "expand[0]": "data." + expand}
}

// ofOrder reports whether an object names the order. Of others no field needs to be readable.
func ofOrder(raw json.RawMessage, orderID string) bool {
	object, err := decode(raw)
	return err == nil && object.firstText(orderPlaces) == orderID
}

// ExpireCheckout closes a checkout: nothing can be paid there afterwards. The error is a *RefusalError when it is not open
// any more, ErrNoAnswer (it may be closed), which is ErrNotFound when it is not known there, or that of ctx.
func (c *Client) ExpireCheckout(ctx context.Context, id, key string) (CheckoutSession, error) {
	params := &stripe.CheckoutSessionExpireParams{}
	params.AddExpand(paymentOfSession)
	params.SetIdempotencyKey(key)
	answer, err := c.ask(ctx, http.MethodPost, checkoutSessions+"/"+url.PathEscape(id)+"/expire", actionTimeout, params)
	var no *RefusalError
	switch {
	case errors.As(err, &no) && no.Status == http.StatusNotFound:
		return CheckoutSession{}, unanswered(err)
	case err != nil:
		return CheckoutSession{}, err
	case answer.repeated:
		session, _, err := c.Checkout(ctx, id)
		return session, err
	}
	return theCheckout(answer, id)
}

// OrderPayments reads all payments of an order that were begun since createdFrom, also those that its checkout does not know
// of. They need not be captured. The error is ErrNoAnswer, or that of ctx; then none are returned.
func (c *Client) OrderPayments(ctx context.Context, orderID string, createdFrom time.Time) ([]Payment, error) {
	var payments []Payment
	err := c.everyPage(ctx, "/v1/payment_intents", since(createdFrom, "latest_charge"), func(raw json.RawMessage) error {
		if !ofOrder(raw, orderID) {
			return nil
		}
		found, err := ReadPayment(raw)
		if err != nil {
			return &NoAnswerError{Why: "a payment of the order cannot be read"}
		}
		payments = append(payments, found)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return payments, nil
}

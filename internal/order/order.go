// Package order holds the rules of orders as pure functions: what a provider's answer means for an order, what becomes
// of a payment that is late, wrong or one too many, and when the provider is asked again. It reads no clock, no database
// and no network.
package order

import (
	"errors"
	"fmt"
	"time"
)

// Status is where an order is.
type Status string

// The statuses. Paid, Fulfilling and Refunding are under way: somebody works on them, or takes them over.
const (
	Pending    Status = "pending"
	Paid       Status = "paid"
	Fulfilling Status = "fulfilling"
	Fulfilled  Status = "fulfilled"
	Expired    Status = "expired"
	Canceled   Status = "canceled"
	Failed     Status = "failed" // the checkout could not be made
	Refunding  Status = "refunding"
	Refunded   Status = "refunded"
	Review     Status = "review" // a person must look at it
)

// Statuses lists all of them.
func Statuses() []Status {
	return []Status{Pending, Paid, Fulfilling, Fulfilled, Expired, Canceled, Failed, Refunding, Refunded, Review}
}

// ended reports whether nothing was paid and nothing was to be paid any more.
func (s Status) ended() bool { return s == Expired || s == Canceled || s == Failed }

// Policy says what becomes of a payment that shows up after the order expired or was canceled.
type Policy string

// The policies for late payments.
const (
	LateFulfil Policy = "fulfil"
	LateRefund Policy = "refund"
	LateReview Policy = "review"
)

// Policies lists all of them.
func Policies() []Policy { return []Policy{LateFulfil, LateRefund, LateReview} }

// The reasons that are told of an order or a payment where it did not go its ordinary course.
const (
	ReasonAmount       = "amount_mismatch"      // captured was another amount than the order's
	ReasonCurrency     = "currency_mismatch"    // captured was another currency than the order's
	ReasonSecond       = "second_payment"       // the order had its payment already
	ReasonLate         = "late_payment"         // it was paid after it had expired or was canceled
	ReasonNotFound     = "checkout_not_found"   // the provider does not know the checkout
	ReasonNoPayment    = "paid_without_payment" // the checkout says paid and names no payment
	ReasonNoCheckout   = "checkout_not_made"    // the deadline passed and there is no checkout at the provider
	ReasonRefused      = "checkout_refused"     // the provider refused to make the checkout
	ReasonRefundFailed = "refund_failed"        // a refund was refused, or came back
	ReasonNoTerm       = "subscription_refuses" // the subscription cannot take what was bought
	ReasonAsked        = "asked_for"            // a person asked for it
	ReasonAtProvider   = "refunded_at_provider" // somebody refunded it there
	ReasonDisputed     = "dispute_lost"         // a bank took it back
)

// ErrConflict is the kind of every impossible action. The text of the wrapping error tells a person why.
var ErrConflict = errors.New("not possible now")

func conflict(why string) error { return fmt.Errorf("%w: %s", ErrConflict, why) }

// Order is what a user wants to pay once. A zero instant means that there is none.
type Order struct {
	ID          string
	UserID      string
	PlanKey     string
	Status      Status
	Amount      int64 // minor units
	Currency    string
	LatePayment Policy
	Duration    time.Duration // the time that was sold; 0: the plan's own at fulfilment

	ExpiresAt  time.Time // deadline for paying
	PaidAt     time.Time
	FinishedAt time.Time

	SessionID      string
	CheckoutURL    string
	SubscriptionID string // what it paid for
	Reason         string

	Attempts        int // how often the provider was asked without news
	NextAttemptAt   time.Time
	AskedAt         time.Time
	UnansweredSince time.Time
	NotFound        int // how often in a row the provider did not know the checkout
	NotFoundSince   time.Time
	LastError       string

	LeasedUntil time.Time
	LeaseOwner  string
	Version     int64
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

// New is what an order is made of.
type New struct {
	// ID names the order where a repeated request must find the first one's; "" takes a new one.
	ID          string
	UserID      string
	PlanKey     string
	PlanName    string // shown at the checkout
	Email       string // "" where none is known
	Amount      int64  // minor units
	Currency    string
	Duration    time.Duration // 0: the plan's own at fulfilment
	ExpiresIn   time.Duration
	LatePayment Policy
	SuccessURL  string
	CancelURL   string
	Actor       string
}

// PaymentState is what became of the money of a payment.
type PaymentState string

// The states of a payment. The empty one is money that nobody has decided on yet; it must not last.
const (
	PaymentFulfilled PaymentState = "fulfilled"
	PaymentRefunding PaymentState = "refunding"
	PaymentRefunded  PaymentState = "refunded"
	PaymentReview    PaymentState = "review"
)

// Payment is money that the provider captured for an order.
type Payment struct {
	ID         string // of the payment intent at the provider
	ChargeID   string
	CustomerID string
	Amount     int64 // minor units, captured
	Refunded   int64 // minor units
	Currency   string
	CapturedAt time.Time
	State      PaymentState
	Reason     string
}

// mismatch says how a payment differs from what its order asks for; "" where it fits exactly.
func (o Order) mismatch(p Payment) string {
	switch {
	case p.Currency != o.Currency:
		return ReasonCurrency
	case p.Amount != o.Amount:
		return ReasonAmount
	}
	return ""
}

// Note is one thing that happened to an order: an entry of the audit log, and where it has a topic, a fact for others.
type Note struct {
	Action    string // of the audit log
	Topic     string // of the fact; "" for none
	Key       string // of the fact, with the order's id before it: it is told once
	PaymentID string // "" where it is about none
	Reason    string
}

// The topics of facts about orders.
const (
	TopicFulfilled  = "order.fulfilled"
	TopicExpired    = "order.expired"
	TopicCanceled   = "order.canceled"
	TopicRefunded   = "order.refunded"
	TopicReview     = "order.review"
	AlertReview     = "alert.order_review"
	AlertLate       = "alert.order_late_payment"
	AlertUnanswered = "alert.order_unanswered"
)

// Outcome is an order after something was heard or done, with the payments that changed and what is to be told.
type Outcome struct {
	Order    Order
	Payments []Payment // of the order, all that are known
	Notes    []Note
}

func (out *Outcome) note(action, topic, key, payment, reason string) {
	out.Notes = append(out.Notes, Note{Action: action, Topic: topic, Key: key, PaymentID: payment, Reason: reason})
}

// review puts the order before a person.
func (out *Outcome) review(at time.Time, payment, reason string) {
	out.Order.Status, out.Order.Reason, out.Order.FinishedAt = Review, reason, time.Time{}
	out.Order = out.Order.let(at)
	about := payment
	if about == "" {
		about = reason
	}
	out.note("order_review", TopicReview, "review:"+about, payment, reason)
	out.note("", AlertReview, "alert:review:"+about, payment, reason)
}

// end brings the order to where it stays.
func (out *Outcome) end(status Status, reason string, at time.Time) {
	out.Order.Status, out.Order.Reason, out.Order.FinishedAt = status, reason, at
	out.Order = out.Order.let(at)
}

// let gives the order back: nobody works on it, and no time is set for the next attempt but at once.
func (o Order) let(at time.Time) Order {
	o.LeasedUntil, o.LeaseOwner, o.NextAttemptAt = time.Time{}, "", at
	return o
}

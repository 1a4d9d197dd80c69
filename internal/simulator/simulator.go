// Package simulator stands in for the outside world where there is none: Stripe with its webhooks, and a mail server that
// keeps what it is sent. `termkeeper dev`, the demonstration and the tests use it; nothing in production does.
package simulator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/emersion/go-smtp"
	"go.uber.org/zap"
)

// Options say where the simulator listens and how it behaves. The zero value listens on free loopback ports, sends no
// webhooks and lives in the present.
type Options struct {
	StripeAddr, MailAddr, SMTPAddr string        // "" is 127.0.0.1:0
	Endpoint                       Endpoint      // where webhooks go; see also SetEndpoint
	ClockStart                     time.Time     // zero is now
	RetryDelay                     time.Duration // before the second attempt of a webhook, doubled each time; 0 is 250 ms
	// PaymentEvents: the payments of invoices are told of too (charge.succeeded, payment_intent.*, invoice_payment.paid), as an
	// endpoint hears of them that asked for these types.
	PaymentEvents bool
	Log           *zap.Logger // nil logs nothing
}

// Simulator is a running simulator. Its methods do the same as its endpoints under /_sim/.
type Simulator struct {
	stripe  *stripe
	courier *courier
	mail    *mailSink
	urls    urls
	stop    func(context.Context) error
}

type urls struct{ stripe, mail, smtp string }

// Start listens and serves until Close. The error names the address that could not be taken.
func Start(ctx context.Context, options Options) (*Simulator, error) {
	if options.Log == nil {
		options.Log = zap.NewNop()
	}
	sender := newCourier(Endpoint{}, orDuration(options.RetryDelay, 250*time.Millisecond))
	if err := sender.configure(options.Endpoint); err != nil {
		return nil, fmt.Errorf("starting the simulator: %w", err)
	}
	s := &Simulator{stripe: newStripe(sender, options.ClockStart), courier: sender, mail: &mailSink{}}
	s.stripe.paymentEvents = options.PaymentEvents

	var listeners []net.Listener
	for _, address := range []string{options.StripeAddr, options.MailAddr, options.SMTPAddr} {
		if address == "" {
			address = "127.0.0.1:0"
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			for _, opened := range listeners {
				_ = opened.Close()
			}
			return nil, fmt.Errorf("starting the simulator: %w", err)
		}
		listeners = append(listeners, listener)
	}
	s.urls = urls{
		stripe: "http://" + listeners[0].Addr().String(),
		mail:   "http://" + listeners[1].Addr().String(),
		smtp:   "smtp://" + listeners[2].Addr().String() + "?from=Termkeeper+%3Cno-reply%40termkeeper.localhost%3E",
	}
	s.serve(listeners[0], listeners[1], listeners[2], options.Log)
	return s, nil
}

// serve runs the three servers and the courier, and prepares how to stop them.
func (s *Simulator) serve(stripeListener, mailListener, smtpListener net.Listener, log *zap.Logger) {
	routes := s.stripe.routes()
	s.control(routes)
	servers := []*http.Server{
		{Handler: routes, ReadHeaderTimeout: 10 * time.Second, ErrorLog: zap.NewStdLog(log)},
		{Handler: s.mail.routes(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: zap.NewStdLog(log)},
	}
	mailServer := smtp.NewServer(s.mail)
	mailServer.Domain, mailServer.ErrorLog = "localhost", zap.NewStdLog(log)
	mailServer.EnableSMTPUTF8, mailServer.MaxMessageBytes = true, maxMessageSize
	mailServer.ReadTimeout, mailServer.WriteTimeout = time.Minute, time.Minute

	var running sync.WaitGroup
	sending, stopSending := context.WithCancel(context.Background())
	running.Go(func() { s.courier.run(sending) })
	running.Go(func() { ended(log, servers[0].Serve(stripeListener)) })
	running.Go(func() { ended(log, servers[1].Serve(mailListener)) })
	running.Go(func() { ended(log, mailServer.Serve(smtpListener)) })

	s.stop = func(ctx context.Context) error {
		stopSending()
		close(s.stripe.closing)
		err := errors.Join(servers[0].Shutdown(ctx), servers[1].Shutdown(ctx), mailServer.Close())
		// The mail server closes only a listener that Serve has already told it of.
		if closing := smtpListener.Close(); closing != nil && !errors.Is(closing, net.ErrClosed) {
			err = errors.Join(err, closing)
		}
		for _, server := range servers {
			_ = server.Close()
		}
		running.Wait()
		return err
	}
}

func ended(log *zap.Logger, err error) {
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		log.Error("simulator stopped serving", zap.Error(err))
	}
}

// Close stops everything. Requests under way have until the context ends; webhooks not sent by then are lost.
func (s *Simulator) Close(ctx context.Context) error {
	if err := s.stop(ctx); err != nil {
		return fmt.Errorf("closing the simulator: %w", err)
	}
	return nil
}

// StripeURL is the base of the REST API, for STRIPE_API_BASE.
func (s *Simulator) StripeURL() string { return s.urls.stripe }

// MailURL is the base of the sink's list: GET {MailURL}/messages.
func (s *Simulator) MailURL() string { return s.urls.mail }

// SMTPURL is where mail is sent to, in the form of SMTP_URL.
func (s *Simulator) SMTPURL() string { return s.urls.smtp }

// SetEndpoint says where webhooks go from now on. The error tells of an unknown shape.
func (s *Simulator) SetEndpoint(endpoint Endpoint) error { return s.courier.configure(endpoint) }

// AddFault makes the next events go wrong. The error tells of an unknown kind.
func (s *Simulator) AddFault(fault Fault) error { return s.courier.addFault(fault) }

// AddRESTFault makes the next calls of the REST API go wrong. The error tells of an unknown kind.
func (s *Simulator) AddRESTFault(fault RESTFault) error { return s.stripe.addRESTFault(fault) }

// ClearRESTFaults takes back what AddRESTFault has asked for and has not happened yet.
func (s *Simulator) ClearRESTFaults() {
	s.stripe.mu.Lock()
	defer s.stripe.mu.Unlock()
	s.stripe.restFaults = nil
}

// Calls are the calls of the REST API so far, oldest first, those that went wrong with them.
func (s *Simulator) Calls() []Call {
	s.stripe.mu.Lock()
	defer s.stripe.mu.Unlock()
	return slices.Clone(s.stripe.calls)
}

// CompleteCheckout lets a customer pay in an open checkout session: its customer and its subscription are made. It returns
// the session with their ids; false when there is no open one of that id.
func (s *Simulator) CompleteCheckout(id string, in CheckoutCompletion) (CheckoutFixture, bool) {
	return s.stripe.complete(id, in)
}

// PayCheckout lets a customer pay in an open checkout session of the mode payment, and returns the payment. The error tells
// that there is none, or that nobody can pay in it any more.
func (s *Simulator) PayCheckout(id string, in PayOptions) (PaymentIntentFixture, error) {
	return s.stripe.payCheckout(id, in)
}

// ExtraPayment captures money a second time, or late: a payment of its own with the same metadata as that of the session,
// which may be in any state and does not change. The id is that of the session, or of an order (metadata.order_id).
func (s *Simulator) ExtraPayment(sessionOrOrder string, in PayOptions) (PaymentIntentFixture, error) {
	return s.stripe.extraPayment(sessionOrOrder, in)
}

// FinishPayment ends an asynchronous payment: it succeeds, or it fails. With dropWebhook none of the events is ever sent.
func (s *Simulator) FinishPayment(paymentIntentID string, succeeds, dropWebhook bool) (PaymentIntentFixture, error) {
	return s.stripe.finishPayment(paymentIntentID, succeeds, dropWebhook)
}

// TellPayments sets PaymentEvents of the options.
func (s *Simulator) TellPayments(tell bool) {
	s.stripe.mu.Lock()
	defer s.stripe.mu.Unlock()
	s.stripe.paymentEvents = tell
}

// HoldRefunds makes refunds pending until FinishRefund, or no longer.
func (s *Simulator) HoldRefunds(hold bool) {
	s.stripe.mu.Lock()
	defer s.stripe.mu.Unlock()
	s.stripe.holdRefunds = hold
}

// RefundPayment gives money back, as somebody does in Stripe's dashboard. The id is that of a payment intent, a charge or an
// invoice. The error tells why Stripe would refuse.
func (s *Simulator) RefundPayment(id string, in RefundOptions) (RefundFixture, error) {
	return s.stripe.refundByHand(id, in)
}

// FinishRefund ends a refund that is pending: it succeeds, or it fails and is taken back.
func (s *Simulator) FinishRefund(id string, succeeds bool) (RefundFixture, error) {
	return s.stripe.finishRefund(id, succeeds)
}

// OpenDispute lets a customer's bank dispute a payment. The id is that of a payment intent, a charge or an invoice.
func (s *Simulator) OpenDispute(id string, in DisputeOptions) (DisputeFixture, error) {
	return s.stripe.openDispute(id, in)
}

// CloseDispute decides an open dispute: won by the merchant, or lost. With dropWebhook none of the events is ever sent.
func (s *Simulator) CloseDispute(id string, won, dropWebhook bool) (DisputeFixture, error) {
	return s.stripe.closeDispute(id, won, dropWebhook)
}

// SendThinEvent sends an event of the newer kind, which carries only the id of its object.
func (s *Simulator) SendThinEvent(eventType, objectID string) {
	s.stripe.publishThin(eventType, objectID)
}

// Deliveries tells what became of the events so far, oldest first.
func (s *Simulator) Deliveries() []Delivery { return s.courier.list() }

// Now is the simulated clock, in whole seconds.
func (s *Simulator) Now() time.Time {
	s.stripe.mu.Lock()
	defer s.stripe.mu.Unlock()
	return s.stripe.now()
}

// AdvanceTo moves the simulated clock forward and lets happen what falls between: rollovers, charges an hour after them,
// ends that were set. It returns the clock's instant; an earlier one than the clock's changes nothing.
func (s *Simulator) AdvanceTo(at time.Time) time.Time { return s.stripe.advance(at) }

// Advance moves the simulated clock forward by d.
func (s *Simulator) Advance(d time.Duration) time.Time { return s.AdvanceTo(s.Now().Add(d)) }

// ChangeSubscription steers a subscription; false when there is none of that id.
func (s *Simulator) ChangeSubscription(id string, change SubscriptionChange) bool {
	return s.stripe.change(id, change)
}

// AddSubscriptions puts subscriptions there as if they had always been there: nothing is told of it. Blanks are
// filled in: ids, a customer, a price of 20.00 a month (also for a PriceID that there is not), a period from the clock's now,
// a paid invoice with its payment; that of a past_due one is open. It returns them as they are. A period that is over
// rolls over at the next call, and of that is told. The error names an id that is taken; those before it are added.
func (s *Simulator) AddSubscriptions(fixtures ...SubscriptionFixture) ([]SubscriptionFixture, error) {
	return s.stripe.addSubscriptions(fixtures)
}

// RemoveSubscription makes the provider know nothing of a subscription, without telling; false when it does not.
func (s *Simulator) RemoveSubscription(id string) bool { return s.stripe.removeSubscription(id) }

// PauseSubscription gives a subscription the status paused and tells of it. The error tells that it cannot.
func (s *Simulator) PauseSubscription(id string) error { return s.stripe.setPaused(id, true) }

// ResumeSubscription makes a paused subscription active, in the period that it had or, when that is over, in a new one.
func (s *Simulator) ResumeSubscription(id string) error { return s.stripe.setPaused(id, false) }

// Messages are the mails that the sink keeps, oldest first.
func (s *Simulator) Messages() []Message { return s.mail.list() }

// AddMailFault makes the next mails go wrong. The error tells of an unknown step or code.
func (s *Simulator) AddMailFault(fault MailFault) error { return s.mail.addFault(fault) }

package payment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/stripe/stripe-go/v76"

	"termkeeper/internal/secret"
	"termkeeper/internal/subscription"
)

const (
	// fetchTimeout bounds a question. Whoever asks goes on without an answer.
	fetchTimeout = 5 * time.Second
	// actionTimeout bounds a change. Stripe's slowest take some seconds; a change that was cut off may have happened.
	actionTimeout = 10 * time.Second
	// maxAnswer is the most that is read of an answer, in bytes. A subscription has some kilobytes.
	maxAnswer = 4 << 20
)

// ErrNoAnswer says that the provider has not said anything about the object: it could not be reached, was too slow, had
// a fault (5xx), had too much to do (429), did not know our key (401), or what came was not the object. A 404 is no answer
// either: it does not prove a deletion. Unknown is not no.
var ErrNoAnswer = errors.New("the payment provider gave no answer")

// ErrNotFound is an ErrNoAnswer of a provider that does answer, but does not know the object.
var ErrNotFound = errors.New("the payment provider does not know the object")

// NoAnswerError is an ErrNoAnswer that says why, and when to ask again.
type NoAnswerError struct {
	Why        string
	NotFound   bool
	RetryAfter time.Duration // zero when the provider did not say
}

// Error tells the reason, without anything secret.
func (e *NoAnswerError) Error() string { return ErrNoAnswer.Error() + ": " + e.Why }

// Is makes every NoAnswerError an ErrNoAnswer, and some an ErrNotFound too.
func (e *NoAnswerError) Is(target error) bool {
	return target == ErrNoAnswer || (e.NotFound && target == ErrNotFound)
}

// RefusalError is the provider's no to a change that we asked for.
type RefusalError struct {
	Status  int    // of HTTP
	Code    string // Stripe's own, for instance resource_missing; may be empty
	Message string // Stripe's words for a person
}

// codeKeyUsed is the Code of a refusal whose key came with other parameters before. Stripe gives it none.
const codeKeyUsed = "idempotency_error"

// Error repeats the provider's words.
func (r *RefusalError) Error() string { return "the payment provider refused: " + r.Message }

// Client asks Stripe and changes subscriptions there. A nil Client means that no key is configured.
type Client struct {
	backend   stripe.Backend
	key       secret.Text
	transport *http.Transport
}

// NewClient makes a client that speaks to base, or to Stripe itself when base is empty. It opens nothing.
// Requests are never repeated here: whoever calls knows whether another try makes sense.
func NewClient(key secret.Text, base string) *Client {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: fetchTimeout}
	config := &stripe.BackendConfig{
		EnableTelemetry:   stripe.Bool(false),
		HTTPClient:        &http.Client{Transport: bounded{transport}, Timeout: actionTimeout},
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull}, // it would log paths and bodies
		MaxNetworkRetries: stripe.Int64(0),
	}
	if base != "" {
		config.URL = stripe.String(base)
	}
	return &Client{backend: stripe.GetBackendWithConfig(stripe.APIBackend, config), key: key, transport: transport}
}

// Close closes the connections that wait for another request. A nil Client has none.
func (c *Client) Close() {
	if c != nil {
		c.transport.CloseIdleConnections()
	}
}

// bounded cuts answers off that are longer than maxAnswer: what is left of them is no JSON any more.
type bounded struct{ *http.Transport }

// RoundTrip is that of http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body := response.Body
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(body, maxAnswer), body}
	return response, nil
}

// object is an answer as it came. It is read by our own resolver: stripe-go knows one version of the fields.
type object struct {
	stripe.APIResource
}

// call sends one request about a subscription and reads the subscription that comes back.
func (c *Client) call(ctx context.Context, method, id string, timeout time.Duration, params stripe.ParamsContainer) (Answer, []byte, error) {
	base := params.GetParams()
	for _, e := range expansions {
		base.AddExpand(e)
	}
	answer, err := c.ask(ctx, method, "/v1/subscriptions/"+url.PathEscape(id), timeout, params)
	if err != nil {
		return Answer{}, nil, err
	}
	if answer.repeated {
		// It says what held when the key came first, up to a day ago, under the Date of now.
		return c.fetch(ctx, id)
	}
	provider, err := Subscription(answer.raw)
	if err != nil || provider.ExternalID != id {
		return Answer{}, nil, &NoAnswerError{Why: "what came was not the subscription that was asked about"}
	}
	return Answer{provider, answer.asked}, answer.raw, nil
}

// Answer is a subscription as the provider knows it. Asked is the second in which our call began, by the provider's clock:
// what changed there later may be missing.
type Answer struct {
	Provider subscription.Provider
	Asked    time.Time
}

// classify turns what stripe-go says into a RefusalError or a NoAnswerError. Neither repeats what could hold a key.
func classify(err error) error {
	var said *stripe.Error
	switch {
	case errors.As(err, &said):
	case errors.Is(err, context.DeadlineExceeded):
		return &NoAnswerError{Why: "it took too long"}
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("asking the payment provider: %w", err)
	default:
		return &NoAnswerError{Why: "the connection failed or the answer was unreadable"}
	}
	status := said.HTTPStatusCode
	switch {
	case status == http.StatusTooManyRequests:
		return &NoAnswerError{Why: "it has too many requests", RetryAfter: retryAfter(said)}
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return &NoAnswerError{Why: "it does not accept our key"}
	case status == http.StatusConflict: // the object is locked, or a request with the same key still runs
		return &NoAnswerError{Why: "the object is busy there", RetryAfter: retryAfter(said)}
	case status >= http.StatusBadRequest && status < http.StatusInternalServerError:
		no := &RefusalError{Status: status, Code: string(said.Code), Message: said.Msg}
		if said.Type == stripe.ErrorTypeIdempotency {
			no.Code = codeKeyUsed
		}
		return no
	}
	return &NoAnswerError{Why: "it answered with status " + strconv.Itoa(status), RetryAfter: retryAfter(said)}
}

func retryAfter(said *stripe.Error) time.Duration {
	if said.LastResponse == nil {
		return 0
	}
	seconds, err := strconv.Atoi(said.LastResponse.Header.Get("Retry-After"))
	if err != nil || seconds < 0 || seconds > 3600 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// expansions are what is needed beside the subscription: why its latest invoice was made, and whose customer it is.
var expansions = []string{"latest_invoice", "customer"}

// Subscription fetches a subscription, with its latest invoice and its customer. asked is the second in which the call
// began, by the provider's clock: what it changed later may be missing. The error is ErrNoAnswer, or that of ctx.
func (c *Client) Subscription(ctx context.Context, id string) (provider subscription.Provider, asked time.Time, err error) {
	answer, _, err := c.fetch(ctx, id)
	return answer.Provider, answer.Asked, err
}

func (c *Client) fetch(ctx context.Context, id string) (Answer, []byte, error) {
	answer, raw, err := c.call(ctx, http.MethodGet, id, fetchTimeout, &stripe.SubscriptionParams{})
	return answer, raw, unanswered(err)
}

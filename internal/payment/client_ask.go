package payment

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/stripe/stripe-go/v76"
)

// said is what one request was answered with.
type said struct {
	raw json.RawMessage
	// asked is the second in which the call began, by the provider's clock: what changed there later may be missing.
	asked time.Time
	// repeated: it says what held when its idempotency key came first, up to a day ago.
	repeated bool
}

// ask sends one request. The error is a *RefusalError, a *NoAnswerError, or that of ctx. When it began is told by the Date of
// the answer, less what the call took, rounded down.
func (c *Client) ask(ctx context.Context, method, path string, timeout time.Duration, params stripe.ParamsContainer) (said, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	params.GetParams().Context = ctx
	var got object
	began := time.Now()
	if err := c.backend.Call(method, path, c.key.Reveal(), params, &got); err != nil {
		return said{}, classify(err)
	}
	took := time.Since(began)
	date, err := http.ParseTime(got.LastResponse.Header.Get("Date"))
	if err != nil {
		return said{}, &NoAnswerError{Why: "the answer had no usable Date"}
	}
	return said{
		raw: got.LastResponse.RawJSON, asked: date.UTC().Add(-took).Truncate(time.Second),
		repeated: got.LastResponse.Header.Get("Idempotent-Replayed") == "true",
	}, nil
}

// look is ask for a question: a refusal of it is no answer, and a 404 the one that says that the object is not known.
func (c *Client) look(ctx context.Context, path string, params stripe.ParamsContainer) (said, error) {
	answer, err := c.ask(ctx, http.MethodGet, path, fetchTimeout, params)
	return answer, unanswered(err)
}

func unanswered(err error) error {
	var no *RefusalError
	if errors.As(err, &no) {
		return &NoAnswerError{Why: "it answered with status " + strconv.Itoa(no.Status), NotFound: no.Status == http.StatusNotFound}
	}
	return err
}

// maxPage is the most objects that Stripe puts on a page.
const maxPage = "100"

// listMargin is how much older than asked for the objects of a list may be: the provider's clock is not ours.
const listMargin = 10 * time.Minute

// everyPage reads a whole list, newest first, and shows each of its objects. query is put to it as it is. The error is a
// *NoAnswerError, that of ctx, or that of each; what was shown before it is then not all there is.
func (c *Client) everyPage(ctx context.Context, path string, query map[string]string, each func(json.RawMessage) error) error {
	for last := ""; ; {
		params := &stripe.Params{}
		for name, value := range query {
			params.AddExtra(name, value)
		}
		objects, _, more, err := c.page(ctx, path, last, params)
		if err != nil {
			return wholeListsOnly(unanswered(err))
		}
		for _, raw := range objects {
			if err := each(raw); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
		next := ""
		if object, err := decode(objects[len(objects)-1]); err == nil {
			next = object.at("id").text()
		}
		if next == "" || next == last {
			return &NoAnswerError{Why: "its list does not go on where it says that it does"}
		}
		last = next
	}
}

// wholeListsOnly: a list that is not there says nothing about what would be on it.
func wholeListsOnly(err error) error {
	var silent *NoAnswerError
	if errors.As(err, &silent) && silent.NotFound {
		return &NoAnswerError{Why: silent.Why, RetryAfter: silent.RetryAfter}
	}
	return err
}

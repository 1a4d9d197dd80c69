package intake

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"

	"termkeeper/internal/payment"
	"termkeeper/internal/store"
)

const (
	// askers is how many questions are put to the provider at the same time. Stripe allows 100 calls a second, and other work needs some.
	askers = 8
	// askTimeout bounds all questions of one group. What has no answer by then has none.
	askTimeout = 8 * time.Second
)

// answer is what became of a question.
type answer struct {
	truth   *store.Truth // nil: no answer
	missing bool         // the provider says that there is no such subscription
	began   time.Time    // by our clock
}

// ask puts questions to the provider, outside any transaction. After the first one without an answer the rest of the group has
// none either: a provider that is down costs one time-out and not one for each subscription.
func (in *Intake) ask(ctx context.Context, ids []string) map[string]answer {
	answers := make(map[string]answer, len(ids))
	if in.settings.Fetch == nil || len(ids) == 0 {
		return answers
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var asking sync.WaitGroup
	var mu sync.Mutex
	next := make(chan string)
	for range min(askers, len(ids)) {
		asking.Go(func() {
			for id := range next {
				a, err := in.askOne(ctx, id)
				if err != nil {
					cancel()
				}
				mu.Lock()
				answers[id] = a
				mu.Unlock()
			}
		})
	}
	for _, id := range ids {
		select {
		case next <- id:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	asking.Wait()
	return answers
}

// askOne returns an error when there was no answer at all.
func (in *Intake) askOne(ctx context.Context, id string) (a answer, err error) {
	began := time.Now().UTC()
	defer func() {
		if p := recover(); p != nil {
			a, err = answer{}, fmt.Errorf("asking panicked: %v", p)
			in.log.Error("asking the provider panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
		}
	}()
	provider, asked, err := in.settings.Fetch(ctx, id)
	var none *payment.NoAnswerError
	switch {
	case errors.As(err, &none) && none.NotFound:
		return answer{missing: true, began: began}, nil
	case err != nil:
		if ctx.Err() == nil {
			in.log.Warn("the provider did not answer", zap.String("external_id", id), zap.Error(err))
		}
		return answer{}, err
	case provider.ExternalID != id:
		in.log.Warn("the provider answered with another subscription", zap.String("external_id", id))
		return answer{}, nil
	}
	return answer{truth: &store.Truth{Provider: provider, Asked: asked, Began: began, Actor: store.ActorStripe}, began: began}, nil
}

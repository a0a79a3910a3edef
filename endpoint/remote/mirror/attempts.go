package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/retry"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// attempts is the policy for requests to a source: how long it may send nothing, and how long requests are retried.
type attempts struct {
	stall    time.Duration
	patience time.Duration
	moved    *atomic.Int64 // bytes of bodies received
	retry    func(error)
}

// forPeers returns the policy for other mirrors, which can be replaced by each other.
func (a *attempts) forPeers() *attempts {
	return &attempts{stall: min(a.stall, peerStall), patience: a.patience, moved: a.moved, retry: a.retry}
}

// open opens a body. It fails if the source sends nothing for the stall time. The caller closes the body.
func (a *attempts) open(ctx context.Context, open func(context.Context) (io.ReadCloser, error)) (*modelwire.Body, error) {
	body, err := modelwire.Open(ctx, modelwire.BodyOptions{
		Stall: a.stall, Silent: fmt.Errorf("%w for %v", ErrStalled, a.stall), Received: func(n int) { a.moved.Add(int64(n)) },
	}, open)
	var outer *url.Error
	if errors.As(err, &outer) {
		err = outer.Err // the caller adds the URL
	}
	return body, err
}

// again calls attempt until it succeeds, fails permanently, or makes no progress for the patience time. further reports
// whether an attempt made progress.
func (a *attempts) again(ctx context.Context, attempt func() (further bool, err error)) error {
	policy := retry.Policy{
		Backoff: retry.Backoff{Initial: 100 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.5}, Patience: a.patience, Failed: a.retry,
		Again: func(err error) (again bool, after time.Duration) {
			var status *store.StatusError
			if errors.As(err, &status) {
				after = status.After
			}
			return passing(err), after
		},
	}
	err := policy.Do(ctx, attempt)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

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
	backoff, last := retry.Backoff{Initial: 100 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.5}, time.Now()
	for n := 0; ; n++ {
		further, err := attempt()
		if err == nil || ctx.Err() != nil || !passing(err) {
			return err
		}
		if further {
			n, last = 0, time.Now()
		}
		if time.Since(last) > a.patience {
			return fmt.Errorf("no progress for %v: %w", a.patience, err)
		}
		a.retry(err)
		pause := backoff.Pause(n)
		var status *store.StatusError
		if errors.As(err, &status) {
			pause = max(pause, status.After)
		}
		if err := retry.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"sync/atomic"
	"time"

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
	pause, last := 100*time.Millisecond, time.Now()
	for {
		further, err := attempt()
		if err == nil || ctx.Err() != nil || !passing(err) {
			return err
		}
		if further {
			pause, last = 100*time.Millisecond, time.Now()
		}
		if time.Since(last) > a.patience {
			return fmt.Errorf("no progress for %v: %w", a.patience, err)
		}
		a.retry(err)
		var status *store.StatusError
		if errors.As(err, &status) {
			pause = max(pause, status.After)
		}
		if err := sleep(ctx, time.Duration(float64(pause)*(0.5+rand.Float64()))); err != nil {
			return err
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

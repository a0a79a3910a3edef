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

// watched is a body that fails with an error if no data arrives for the stall time.
type watched struct {
	body     io.ReadCloser
	attempts *attempts
	timer    *time.Timer
	cancel   context.CancelCauseFunc
	ctx      context.Context
}

// open opens a body. It fails if the source sends nothing for the stall time. The caller closes the body.
func (a *attempts) open(ctx context.Context, open func(context.Context) (io.ReadCloser, error)) (*watched, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watched{attempts: a, cancel: cancel, ctx: ctx}
	w.timer = time.AfterFunc(a.stall, func() { cancel(fmt.Errorf("%w for %v", ErrStalled, a.stall)) })
	var err error
	if w.body, err = open(ctx); err != nil {
		err = w.why(err)
		w.timer.Stop()
		cancel(nil)
		return nil, err
	}
	return w, nil
}

// why returns the cause of an error of a cancelled request.
func (w *watched) why(err error) error {
	if cause := context.Cause(w.ctx); cause != nil {
		return cause
	}
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err // the caller adds the URL
	}
	return err
}

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(w.attempts.stall)
	n, err := w.body.Read(p)
	w.attempts.moved.Add(int64(n))
	if err != nil && err != io.EOF { //nolint:errorlint // as io.Reader has it
		err = w.why(err)
	}
	return n, err
}

// Close ends the request. The rest of the body is not read.
func (w *watched) Close() {
	w.timer.Stop()
	_ = w.body.Close() // Read has returned its error
	w.cancel(nil)
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

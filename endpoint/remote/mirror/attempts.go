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

// attempts is how a source is asked: how long it may say nothing, and how long it is asked again.
type attempts struct {
	stall    time.Duration
	patience time.Duration
	moved    *atomic.Int64 // bytes of bodies that came
	retry    func(error)
}

// forPeers is how mirrors are asked, of which there are others.
func (a *attempts) forPeers() *attempts {
	return &attempts{stall: min(a.stall, peerStall), patience: a.patience, moved: a.moved, retry: a.retry}
}

// watched is a body of which reading fails where nothing comes for the stall time.
type watched struct {
	body     io.ReadCloser
	attempts *attempts
	timer    *time.Timer
	cancel   context.CancelCauseFunc
	ctx      context.Context
}

// open opens a body, which it may do only until the source has said nothing for the stall time. The caller closes it.
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

// why is the reason behind an error of a request that was cancelled.
func (w *watched) why(err error) error {
	if cause := context.Cause(w.ctx); cause != nil {
		return cause
	}
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err // the URL is known
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

// Close ends the request. What is left of a body is not read.
func (w *watched) Close() {
	w.timer.Stop()
	_ = w.body.Close() // whatever was wrong with it was told by Read
	w.cancel(nil)
}

// again makes attempts until one succeeds, one fails for good, or the source has done nothing for the time of patience.
// An attempt says whether it got any further.
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
			return fmt.Errorf("it did not get any further for %v: %w", a.patience, err)
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

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

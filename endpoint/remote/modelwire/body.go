package modelwire

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
)

// BodyOptions configures a [Body].
type BodyOptions struct {
	// Stall limits the time in which the peer sends fewer than Least bytes. Least is 1 if it is 0.
	Stall time.Duration
	Least int
	// Silent is the error after that time.
	Silent error
	// Received, if not nil, receives the length of each read.
	Received func(n int)
}

// Body is the body of an answer. Reading fails if the peer stops sending.
type Body struct {
	options BodyOptions
	body    io.ReadCloser
	timer   *time.Timer
	cancel  context.CancelCauseFunc
	ctx     context.Context
	since   int // bytes since the timer was reset
}

// Open calls open, which requests a body with its context. The context ends if the peer sends too little, or when the
// body is closed. The caller closes the body.
func Open(ctx context.Context, options BodyOptions, open func(context.Context) (io.ReadCloser, error)) (*Body, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	b := &Body{options: options, cancel: cancel, ctx: ctx}
	b.timer = contain.After(options.Stall, func() { cancel(options.Silent) }, cancel)
	var err error
	if b.body, err = open(ctx); err != nil {
		err = b.why(err)
		b.timer.Stop()
		cancel(nil)
		return nil, err
	}
	b.timer.Reset(options.Stall)
	return b, nil
}

// why returns the cause of an error of a cancelled request.
func (b *Body) why(err error) error {
	if cause := context.Cause(b.ctx); cause != nil {
		return cause
	}
	return err
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	if b.since >= b.options.Least {
		b.timer.Reset(b.options.Stall)
		b.since = 0
	}
	n, err := b.body.Read(p)
	b.since += n
	if b.options.Received != nil {
		b.options.Received(n)
	}
	if err != nil && err != io.EOF { //nolint:errorlint // as io.Reader has it
		err = b.why(err)
	}
	return n, err
}

// Close ends the request. The rest of the body is not read.
func (b *Body) Close() error {
	b.timer.Stop()
	err := b.body.Close()
	b.cancel(nil)
	return err
}

// Parallel runs n jobs on the given number of workers until one fails. It then cancels the others and returns that
// error.
func Parallel(ctx context.Context, workers, n int, job func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var running sync.WaitGroup
	for range min(workers, n) {
		contain.In(&running, func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := job(ctx, i); err != nil {
					cancel(err)
				}
			}
		}, cancel)
	}
	running.Wait()
	return context.Cause(ctx)
}

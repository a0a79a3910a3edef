// Package contain runs the goroutines of requests. A panic in one of them is an error of its request. Otherwise it would
// end the process, and all other requests with it.
package contain

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/task/panics"
)

// ErrPanic means that a goroutine of the request panicked. The log has the value and the stack.
var ErrPanic = errors.New("internal error")

// Call calls f. It returns the error of f, or [ErrPanic] if f panics or ends its goroutine, which it logs.
func Call(f func() error) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		err = ErrPanic
		if value := recover(); value != nil {
			p := panics.New(value)
			slog.Error("panic in a request", "panic", p.Text(), "stack", string(p.Stack))
			return
		}
		slog.Error("panic in a request", "error", panics.ErrGoexit)
	}()
	err = f()
	returned = true
	return err
}

// Go runs f in a goroutine. If f panics, it calls failed, which may be nil, with [ErrPanic].
func Go(f func(), failed func(error)) { go run(f, failed) }

// In is [Go] in a group.
func In(group *sync.WaitGroup, f func(), failed func(error)) {
	group.Go(func() { run(f, failed) })
}

// After is [Go] after a duration, like time.AfterFunc.
func After(d time.Duration, f func(), failed func(error)) *time.Timer {
	return time.AfterFunc(d, func() { run(f, failed) })
}

// OnDone is [Go] when a context ends, like context.AfterFunc.
func OnDone(ctx context.Context, f func(), failed func(error)) (stop func() bool) {
	return context.AfterFunc(ctx, func() { run(f, failed) })
}

// run calls f, and failed if f has not returned. A panic in failed is only logged. A deferred call lets failed run if f
// has ended the goroutine with runtime.Goexit.
func run(f func(), failed func(error)) {
	err := ErrPanic
	defer func() {
		if err != nil && failed != nil {
			_ = Call(func() error { failed(err); return nil }) // logged
		}
	}()
	err = Call(func() error { f(); return nil })
}

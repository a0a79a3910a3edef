//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// operation is something that a client does.
type operation struct {
	name     string
	weight   int
	mayBlock bool    // waits for an event that may not occur
	errs     []error // expected errors, besides the end of the context and an unavailable owner
	do       func(w *lane, ctx context.Context, c *endpoint.Client) error
}

// expected reports whether err is an expected error of the operation.
func (o operation) expected(err error) bool {
	for _, e := range o.errs {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// numOperations is an upper bound for len(operations).
const numOperations = 40

var operations = []operation{
	{name: "acquire", weight: 12, errs: []error{endpoint.ErrNotFound}, do: (*lane).acquire},
	{name: "acquire and close", weight: 12, errs: []error{endpoint.ErrNotFound}, do: (*lane).acquireShortly},
	{name: "acquire a version", weight: 4, errs: []error{endpoint.ErrNotFound}, do: (*lane).acquireVersion},
	{name: "check a handle", weight: 8, do: (*lane).checkHandle},
	{name: "close a handle", weight: 6, do: (*lane).closeHandle},
	{name: "publish", weight: 10, do: (*lane).publish},
	{name: "withdraw", weight: 2, errs: []error{endpoint.ErrNotFound}, do: (*lane).withdraw},
	{name: "watch", weight: 14, do: (*lane).watch},
	{name: "next event", weight: 6, mayBlock: true, errs: []error{endpoint.ErrClosed}, do: (*lane).nextEvent},
	{name: "close a watcher", weight: 10, do: (*lane).closeWatcher},
	{name: "follow", weight: 8, errs: []error{endpoint.ErrClosed, context.DeadlineExceeded}, do: (*lane).follow},
	{name: "use a follower", weight: 14, errs: []error{endpoint.ErrClosed, endpoint.ErrNotFound}, do: (*lane).useFollower},
	{name: "close a follower", weight: 2, do: (*lane).closeFollower},
	{name: "ping", weight: 4, do: (*lane).ping},
	{name: "list", weight: 2, do: (*lane).list},
	{name: "info", weight: 2, errs: []error{endpoint.ErrNotFound}, do: (*lane).info},
	{name: "manifest", weight: 2, errs: []error{endpoint.ErrNotFound}, do: (*lane).manifest},
	{name: "server info", weight: 1, do: (*lane).serverInfo},
	{name: "call with a tensor", weight: 10, do: (*lane).callSame},
	{name: "call that reads", weight: 8, do: (*lane).callSum},
	{name: "call of a cached result", weight: 10, errs: runErrors, do: (*lane).callMake},
	{name: "call that fails", weight: 2, do: (*lane).callFail},
	{name: "call that panics", weight: 1, do: (*lane).callPanic},
	{name: "call that takes long", weight: 4, errs: runErrors, do: (*lane).callSleep},
	{name: "invalidate", weight: 2, do: (*lane).invalidate},
	{name: "stream", weight: 5, do: (*lane).stream},
	{name: "managed call", weight: 8, errs: append([]error{endpoint.ErrStale}, runErrors...), do: (*lane).callManaged},
	{name: "check a reference", weight: 6, errs: []error{endpoint.ErrStale, endpoint.ErrClosed}, do: (*lane).checkRef},
	{name: "give a reference back", weight: 5, errs: []error{endpoint.ErrStale, endpoint.ErrClosed}, do: (*lane).closeRef},
	{name: "objects", weight: 1, do: (*lane).objects},
	{name: "destroy", weight: 1, errs: []error{endpoint.ErrStale}, do: (*lane).destroy},
	{name: "call of a task", weight: 4, errs: taskErrors, do: (*lane).callJob},
	{name: "submit", weight: 5, errs: taskErrors, do: (*lane).submit},
	{name: "follow a task", weight: 3, errs: taskErrors, do: (*lane).followTask},
	{name: "result of a task", weight: 4, errs: taskErrors, do: (*lane).result},
	{name: "cancel a task", weight: 2, errs: taskErrors, do: (*lane).cancelTask},
	{name: "watch tasks", weight: 2, mayBlock: true, do: (*lane).watchTasks},
	{name: "connect anew", weight: 1, do: (*lane).redial},
}

// runErrors are the errors of a run that was cancelled because its owner is shutting down or its waiters have left.
var runErrors = []error{task.ErrShutdown, context.Canceled}

// taskErrors are the errors of tasks that were cancelled, were dropped or have not finished.
var taskErrors = append([]error{
	task.ErrNotFound, task.ErrNotFinished, task.ErrCancelled, task.ErrShutdown, task.ErrCapacity, task.ErrDiscarded,
}, workerErrors...)

// weights is the sum of the operations' weights.
var weights = func() (sum int) {
	for _, o := range operations {
		sum += o.weight
	}
	if len(operations) > numOperations {
		panic("numOperations is too small")
	}
	return sum
}()

// pick selects a random operation by weight.
func pick(rng *rand.Rand) int {
	n := rng.IntN(weights)
	for i, o := range operations {
		if n -= o.weight; n < 0 {
			return i
		}
	}
	panic("unreachable")
}

// function returns the name of an endpoint: mostly the owner's, and otherwise that of workers.
func (w *lane) function(name string) string {
	w.offered = w.rng.IntN(3) == 0
	if w.offered {
		return offered + name
	}
	return name
}

// workerErrors are the errors of calls whose worker is killed, and of calls while no worker offers the endpoint.
var workerErrors = []error{endpoint.ErrWorkerGone, endpoint.ErrNoEndpoint}

func isWorkerError(err error) bool {
	return slices.ContainsFunc(workerErrors, func(e error) bool { return errors.Is(err, e) })
}

// key returns one of a few keys, so that results are shared.
func (w *lane) key() uint64 { return uint64(w.rng.IntN(24)) }

// millis returns the duration of a function in milliseconds, mostly 0.
func (w *lane) millis() int64 {
	if w.rng.IntN(4) > 0 {
		return 0
	}
	return int64(w.rng.IntN(30))
}

// checkMade checks a tensor that an endpoint returned for a key, and closes it.
func (w *lane) checkMade(t *tensor.Tensor, key uint64) error {
	if t == nil {
		return found("no tensor")
	}
	err := w.check(t, key)
	return errors.Join(err, t.Close())
}

func (w *lane) check(t *tensor.Tensor, key uint64) error {
	w.report.bytes.Add(t.Bytes())
	if err := checkTensor(t, key, 0, oneSpec(key)); err != nil {
		return found("%w", err)
	}
	return nil
}

// argument returns a new tensor and its salt.
func (w *lane) argument() (*tensor.Tensor, uint64, error) {
	salt := w.rng.Uint64()
	t, err := makeTensor(w.memory, salt, 0, oneSpec(salt))
	return t, salt, err
}

func (w *lane) callSame(ctx context.Context, c *endpoint.Client) error {
	t, salt, err := w.argument()
	if err != nil {
		return err
	}
	defer t.Close()
	got, err := endpoint.Call[*tensor.Tensor](ctx, c, w.function("same"), t)
	if err != nil {
		return err
	}
	return w.checkMade(got, salt)
}

func (w *lane) callSum(ctx context.Context, c *endpoint.Client) error {
	t, _, err := w.argument()
	if err != nil {
		return err
	}
	defer t.Close()
	want, err := sum(t)
	if err != nil {
		return err
	}
	got, err := endpoint.Call[uint64](ctx, c, w.function("sum"), t)
	if err == nil && got != want {
		return found("the owner read %x instead of %x", got, want)
	}
	return err
}

func (w *lane) callMake(ctx context.Context, c *endpoint.Client) error {
	key := w.key()
	t, err := endpoint.Call[*tensor.Tensor](ctx, c, w.function("make"), made{key, w.millis()})
	if err != nil {
		return err
	}
	return w.checkMade(t, key)
}

func (w *lane) callFail(ctx context.Context, c *endpoint.Client) error {
	text := fmt.Sprintf("this error is %d", w.rng.Uint64())
	return w.mustFail(ctx, c, "fail", text, nil)
}

func (w *lane) callPanic(ctx context.Context, c *endpoint.Client) error {
	text := fmt.Sprintf("this panic is %d", w.rng.Uint64())
	return w.mustFail(ctx, c, "panic", text, endpoint.ErrPanic)
}

// mustFail calls a function that fails with a text.
func (w *lane) mustFail(ctx context.Context, c *endpoint.Client, name, text string, is error) error {
	err := c.Call(ctx, w.function(name), text, nil)
	switch {
	case err == nil:
		return found("the function failed, and its call did not")
	case !strings.Contains(err.Error(), text):
		return err
	case is != nil && !errors.Is(err, is):
		return found("%w is not %v", err, is)
	}
	return nil
}

func (w *lane) callSleep(ctx context.Context, c *endpoint.Client) error {
	in := made{w.rng.Uint64(), int64(w.rng.IntN(50))}
	got, err := endpoint.Call[uint64](ctx, c, w.function("sleep"), in)
	if err == nil && got != in.Key {
		return found("another call's answer: %x instead of %x", got, in.Key)
	}
	return err
}

func (w *lane) invalidate(ctx context.Context, c *endpoint.Client) error {
	if w.rng.IntN(4) == 0 {
		_, err := c.InvalidateEndpoint(ctx, w.function("make"))
		return err
	}
	_, err := c.InvalidateCall(ctx, w.function("make"), made{w.key(), 0})
	return err
}

func (w *lane) stream(ctx context.Context, c *endpoint.Client) error {
	n := uint64(w.rng.IntN(40))
	leave := uint64(w.rng.IntN(60))
	var at uint64
	for t, err := range endpoint.Stream[*tensor.Tensor](ctx, c, w.function("items"), n) {
		if err != nil {
			return err
		}
		if err := w.checkMade(t, at); err != nil {
			return err
		}
		if at++; at > leave {
			return nil
		}
	}
	if at != n {
		return found("a stream of %d results had %d", n, at)
	}
	return nil
}

func (w *lane) ping(ctx context.Context, c *endpoint.Client) error {
	_, err := c.Ping(ctx)
	return err
}

func (w *lane) serverInfo(ctx context.Context, c *endpoint.Client) error {
	_, err := c.ServerInfo(ctx)
	return err
}

// redial replaces the client and everything that belongs to its connection.
func (w *lane) redial(ctx context.Context, _ *endpoint.Client) error {
	return w.dial(context.WithoutCancel(ctx))
}

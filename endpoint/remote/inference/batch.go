package inference

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
)

// batching holds the settings of dynamic batching for a model.
type batching struct {
	max   int           // rows of a batch; 0 means no batching
	delay time.Duration // how long a request may wait for others
}

// maxBatchKey is the maximum size of a key. Requests with longer keys are not joined.
const maxBatchKey = 4 << 10

// defaultPriority is the priority of requests without one. Lower numbers run first.
const defaultPriority = math.MaxUint32

// batcher joins the requests of a model. One batch runs at a time; requests that arrive meanwhile wait for the next one.
// A batch has requests of equal form: types, shapes beyond the first dimension, other values and version. It starts when
// it has max rows, or when its first request has waited for the delay.
type batcher struct {
	batching
	limit int // maximum number of waiting requests

	mu      sync.Mutex
	queue   []*batched // by priority, then by arrival
	running bool
	timer   *time.Timer // starts the batch of the first request; nil if none is set
}

// batched is a request that waits for its batch or is part of one.
type batched struct {
	ctx      context.Context
	model    *model
	argument *argument
	rows     int64
	key      string // equal for requests that can be joined
	priority uint64
	queued   time.Time

	done   chan struct{} // closed when the fields below are set
	result any
	err    error
	spent  timing // in the batch

	finished bool // used by the goroutine of the batch
}

// join returns a request for the batcher. rows is the size of the first dimension of all its tensors.
func (b *batcher) join(ctx context.Context, m *model, r *request, a *argument) (*batched, error) {
	one := &batched{ctx: ctx, model: m, argument: a, priority: defaultPriority, done: make(chan struct{})}
	if p, ok := integerOf(r.parameters[paramPriority]); ok && p > 0 {
		one.priority = min(uint64(p), defaultPriority)
	}
	var key strings.Builder
	fmt.Fprintf(&key, "%s\n", r.version)
	one.rows = -1
	var bytes int64
	for _, t := range a.tensors {
		bytes += aligned(t.tensor.Bytes())
		shape := t.tensor.Shape()
		if len(shape) == 0 {
			return nil, inputError(t.port.name, fmt.Errorf("%w: model '%s' needs a batch dimension", ErrInvalid, m.name))
		}
		if one.rows >= 0 && shape[0] != one.rows {
			return nil, inputError(t.port.name, fmt.Errorf("%w: batch size %d differs from %d of other inputs", ErrInvalid, shape[0], one.rows))
		}
		one.rows = shape[0]
		fmt.Fprintf(&key, "%s %v %v\n", t.port.name, t.tensor.DType(), shape[1:])
	}
	if one.rows < 1 || one.rows > int64(b.max) {
		return nil, fmt.Errorf("%w: inference request batch-size must be <= %d for '%s', and at least 1, not %d", ErrInvalid, b.max, m.name, one.rows)
	}
	if err := a.charge.Add(bytes); err != nil { // its part of the batch's slab
		return nil, err
	}
	for _, v := range a.values {
		fmt.Fprintf(&key, "%v=%#v\n", v.path, v.value)
	}
	if one.key = key.String(); len(one.key) > maxBatchKey {
		one.key = fmt.Sprintf("%p", one)
	}
	return one, nil
}

// call queues a request and waits for its result. It owns the argument of the request and closes it when no batch uses
// it.
func (b *batcher) call(one *batched) (any, error) {
	b.mu.Lock()
	if len(b.queue) >= b.limit {
		b.mu.Unlock()
		return nil, errors.Join(fmt.Errorf("%w: Exceeds maximum queue size: %d requests of model '%s' wait: see --infer-queue", ErrBusy, b.limit, one.model.name), one.argument.close())
	}
	one.queued = time.Now()
	at, _ := slices.BinarySearchFunc(b.queue, one, func(waiting, next *batched) int {
		if waiting.priority <= next.priority {
			return -1
		}
		return 1
	})
	b.queue = slices.Insert(b.queue, at, one)
	b.mu.Unlock()
	b.dispatch()
	select {
	case <-one.done:
		return one.result, one.err
	case <-one.ctx.Done():
	}
	b.mu.Lock()
	at = slices.Index(b.queue, one)
	if at >= 0 {
		b.queue = slices.Delete(b.queue, at, at+1)
	}
	b.mu.Unlock()
	if at >= 0 {
		return nil, errors.Join(context.Cause(one.ctx), one.argument.close())
	}
	contain.Go(func() { // the batch ends with its function
		<-one.done
		closeTensors(one.result)
	}, nil)
	return nil, context.Cause(one.ctx)
}

// dispatch starts the next batch if it is complete, or sets a timer for it. If that panics, all waiting requests fail:
// nothing else would start them.
func (b *batcher) dispatch() {
	err := contain.Call(func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.dispatchLocked()
		return nil
	})
	if err == nil {
		return
	}
	b.mu.Lock()
	waiting := b.queue
	b.queue = nil
	b.mu.Unlock()
	for _, one := range waiting {
		_ = contain.Call(func() error { one.finish(nil, err); return nil })
	}
}

// dispatchLocked starts the next batch if it is complete, or sets a timer for it.
func (b *batcher) dispatchLocked() {
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	if b.running || len(b.queue) == 0 {
		return
	}
	first := b.queue[0]
	group, full := b.groupLocked(first)
	oldest := first.queued
	for _, one := range group {
		if one.queued.Before(oldest) {
			oldest = one.queued
		}
	}
	if wait := b.delay - time.Since(oldest); !full && wait > 0 {
		b.timer = contain.After(wait, b.dispatch, nil)
		return
	}
	b.running = true
	b.queue = slices.DeleteFunc(b.queue, func(one *batched) bool { return slices.Contains(group, one) })
	contain.Go(func() {
		defer func() {
			b.mu.Lock()
			b.running = false
			b.mu.Unlock()
			b.dispatch()
		}()
		runBatch(group)
	}, nil)
}

// groupLocked returns the requests that can run with the first one, in order. full reports that no other request would
// fit.
func (b *batcher) groupLocked(first *batched) (group []*batched, full bool) {
	rows := int64(0)
	for _, one := range b.queue {
		if one.key != first.key {
			continue
		}
		if rows+one.rows > int64(b.max) {
			return group, true
		}
		rows += one.rows
		group = append(group, one)
	}
	return group, rows == int64(b.max)
}

// waiting returns the number of queued requests.
func (b *batcher) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}

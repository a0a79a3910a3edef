package task

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var ctx = context.Background()

// resource is a result with a reference count, which is 1 while the manager holds it.
type resource struct{ refs atomic.Int32 }

func newResource() *resource {
	r := &resource{}
	r.refs.Store(1)
	return r
}

func (r *resource) release() { r.refs.Add(-1) }

// newManager returns a manager of resources that is shut down with the test.
func newManager(t testing.TB, opts Options[*resource]) *Manager[*resource] {
	opts.Release = (*resource).release
	m := New(opts)
	t.Cleanup(func() { require.NoError(t, m.Shutdown(ctx)) })
	return m
}

// submit submits fn under the name "job".
func submit(t testing.TB, m *Manager[*resource], fn func(context.Context) (*resource, error)) *Task[*resource] {
	t.Helper()
	task, err := m.Submit(ctx, Spec{Name: "job"}, fn)
	require.NoError(t, err)
	return task
}

// give returns a function that returns r.
func give(r *resource) func(context.Context) (*resource, error) {
	return func(context.Context) (*resource, error) { return r, nil }
}

// run submits a function that succeeds and waits for it.
func run(t testing.TB, m *Manager[*resource]) (*Task[*resource], *resource) {
	t.Helper()
	r := newResource()
	task := submit(t, m, give(r))
	require.NoError(t, task.Wait(ctx))
	return task, r
}

// drop removes a finished task, as its age or number would.
func drop(task *Task[*resource]) {
	task.m.mu.Lock()
	defer task.m.unlock()
	task.m.dropLocked(task)
}

// gate is a function that waits until it is opened, or its context ends.
type gate struct {
	opened chan struct{}
	result *resource
	cause  error // of the function's context, if that ended first
}

func newGate() *gate { return &gate{opened: make(chan struct{}), result: newResource()} }

func (g *gate) wait(ctx context.Context) (*resource, error) {
	select {
	case <-g.opened:
		return g.result, nil
	case <-ctx.Done():
		g.cause = context.Cause(ctx)
		return nil, ctx.Err()
	}
}

// stubborn waits until the gate is opened, even if its context ends.
func (g *gate) stubborn(context.Context) (*resource, error) {
	<-g.opened
	return g.result, nil
}

// state returns the state of the task.
func state(task *Task[*resource]) State { return task.Status().State }

const ttl = time.Minute

// replaceID replaces the id, to compare texts.
func replaceID(text, id string) string { return strings.ReplaceAll(text, id, "ID") }

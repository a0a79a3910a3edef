package cache

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// resource is a value that must be closed exactly once and not be used afterwards.
type resource struct {
	bytes  int64
	closed atomic.Int32
}

func (r *resource) isClosed() bool { return r.closed.Load() > 0 }

// newCache returns a cache of resources that closes what it evicts.
func newCache(t testing.TB, opts Options[*resource]) *Cache[*resource] {
	opts.Cost = func(_ Key, r *resource) int64 { return r.bytes }
	opts.OnEvict = func(_ Key, r *resource) { r.closed.Add(1) }
	c := New(opts)
	t.Cleanup(func() { require.NoError(t, c.Close(context.Background())) })
	return c
}

// key returns a key in the group "g".
func key(id string) Key { return Key{Group: "g", ID: id} }

// give returns a load that returns r.
func give(r *resource) func(context.Context) (*resource, error) {
	return func(context.Context) (*resource, error) { return r, nil }
}

// unexpected is a load that must not be called.
func unexpected(context.Context) (*resource, error) { return nil, errors.New("built again") }

// put builds r under the id and releases it.
func put(t testing.TB, c *Cache[*resource], id string, bytes int64) *resource {
	t.Helper()
	r := &resource{bytes: bytes}
	ref, err := c.Get(context.Background(), key(id), give(r))
	require.NoError(t, err)
	require.Same(t, r, ref.Value())
	require.NoError(t, ref.Close())
	return r
}

// has reports whether the id exists, and makes it the most recently used.
func has(c *Cache[*resource], id string) bool {
	ref, ok := c.Lookup(key(id))
	if ok {
		ref.Close()
	}
	return ok
}

// gate is a load that waits until it is opened, or its context ends.
type gate struct {
	opened chan struct{}
	value  *resource
	cause  error // of the load's context, if that ended first
	starts atomic.Int32
}

func newGate() *gate { return &gate{opened: make(chan struct{}), value: &resource{}} }

func (g *gate) load(ctx context.Context) (*resource, error) {
	g.starts.Add(1)
	select {
	case <-g.opened:
		return g.value, nil
	case <-ctx.Done():
		g.cause = context.Cause(ctx)
		return nil, g.cause
	}
}

// stubborn waits until the gate is opened, even if its context ends.
func (g *gate) stubborn(context.Context) (*resource, error) {
	g.starts.Add(1)
	<-g.opened
	return g.value, nil
}

// outcome is the result of a Get on another goroutine.
type outcome struct {
	ref *Ref[*resource]
	err error
}

// getting starts a Get and returns the channel of its outcome.
func getting(ctx context.Context, c *Cache[*resource], id string, load func(context.Context) (*resource, error)) chan outcome {
	ch := make(chan outcome, 1)
	go func() {
		ref, err := c.Get(ctx, key(id), load)
		ch <- outcome{ref, err}
	}()
	return ch
}

const ttl = time.Minute

package engine

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// newEngine returns an engine that ends with the test.
func newEngine(t *testing.T) *Engine {
	t.Helper()
	e := New(Config{Server: "server", Log: slog.New(slog.DiscardHandler), Limits: status.Limits{ObjectBytes: 1 << 20, ObjectBytesTotal: 1 << 20}})
	t.Cleanup(func() { require.NoError(t, e.Tasks.Shutdown(context.Background())) })
	return e
}

// function returns an endpoint that calls f.
func function(name string, f func(ctx context.Context) (any, error)) *Definition {
	return &Definition{Name: name, In: reflect.TypeFor[int](), Out: reflect.TypeFor[int](), Invoke: func(ctx context.Context, _ any) (any, error) { return f(ctx) }}
}

// arguments returns the argument n.
func arguments(n int) *Arguments { return &Arguments{raw: []byte{byte(n)}, Value: &n} }

// Equal calls of a cached endpoint share one run, and later calls get its result until it is discarded.
func TestObtainSharesRuns(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	var runs atomic.Int64
	let := make(chan struct{})
	d := function("f", func(context.Context) (any, error) { runs.Add(1); <-let; return 7, nil })
	d.Options.Cached = true
	var all sync.WaitGroup
	var shared atomic.Int64
	for range 10 {
		all.Go(func() {
			r, cached, err := e.Obtain(context.Background(), d, arguments(1))
			if err != nil {
				t.Error(err)
				return
			}
			if cached {
				shared.Add(1)
			}
			r.Release()
		})
	}
	require.Eventually(t, func() bool { return runs.Load() == 1 }, time.Minute, time.Millisecond)
	close(let)
	all.Wait()
	require.EqualValues(t, 1, runs.Load())
	require.EqualValues(t, 9, shared.Load())
	r, cached, err := e.Obtain(context.Background(), d, arguments(1))
	require.NoError(t, err)
	require.True(t, cached)
	r.Discard()
	r.Release()
	r, cached, err = e.Obtain(context.Background(), d, arguments(1))
	require.NoError(t, err)
	require.False(t, cached)
	r.Release()
	require.EqualValues(t, 2, runs.Load())
}

// An error, a panic, a result that cannot be encoded and a timeout fail a run, and are not cached.
func TestRunErrors(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	failure := errors.New("no luck")
	for name, row := range map[string]struct {
		f    func(context.Context) (any, error)
		want string
	}{
		"error":  {func(context.Context) (any, error) { return nil, failure }, "no luck"},
		"panic":  {func(context.Context) (any, error) { panic("of f") }, "of f"},
		"encode": {func(context.Context) (any, error) { return make(chan int), nil }, "result"},
		"time":   {func(ctx context.Context) (any, error) { <-ctx.Done(); return nil, context.Cause(ctx) }, "deadline"},
	} {
		d := function("f", row.f)
		d.Options.Cached, d.Options.Timeout = true, time.Minute
		if name == "time" {
			d.Options.Timeout = time.Millisecond
		}
		for range 2 {
			_, cached, err := e.Obtain(context.Background(), d, arguments(1))
			require.ErrorContains(t, err, row.want, name)
			require.ErrorContains(t, err, `"f"`, name)
			require.False(t, cached, name)
		}
		require.EqualValues(t, 0, d.Hits.Load(), name)
	}
	ended, cancel := context.WithCancelCause(context.Background())
	cancel(failure)
	_, _, err := e.Obtain(ended, function("f", func(context.Context) (any, error) { return 1, nil }), arguments(1))
	require.ErrorIs(t, err, failure, "a run whose context has ended does not begin")
}

// object makes a managed object for a session.
func object(t *testing.T, e *Engine, session uint64) (*Object, uint64) {
	t.Helper()
	d := function("f", func(context.Context) (any, error) { return 1, nil })
	r, _, err := e.Obtain(context.Background(), d, arguments(1))
	require.NoError(t, err)
	defer r.Release()
	obj, token, err := e.Objects.Refer(r, d, nil, session, 3)
	require.NoError(t, err)
	return obj, token
}

// An object lives until the last reference of all sessions is released. A token is of one session.
func TestObjectLivesWithItsReferences(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	obj, first := object(t, e, 1)
	second, err := e.Objects.ReferAgain(obj.ID, 2, 3)
	require.NoError(t, err)
	third, err := e.Objects.ReferAgain(obj.ID, 1, 3)
	require.NoError(t, err)
	require.Equal(t, []int{2, 1, 0}, []int{e.Objects.HeldBy(1), e.Objects.HeldBy(2), e.Objects.HeldBy(3)})
	_, err = e.ReleaseReference(obj.ID, second, 1)
	require.ErrorIs(t, err, status.ErrPermission, "a token of another session")
	was, err := e.ReleaseReference(obj.ID, third, 1)
	require.NoError(t, err)
	require.Equal(t, 2, was.Left)
	_, err = e.ReleaseReference(obj.ID, third, 1)
	require.ErrorIs(t, err, status.ErrPermission, "released before")
	was, err = e.ReleaseReference(obj.ID, 0, 1)
	require.NoError(t, err)
	require.Equal(t, first, was.Token, "0 is the oldest")
	e.ReleaseSession(1)
	require.Equal(t, 1, e.Objects.Count(), "session 2 has a reference")
	result := obj.Result.Result
	require.Same(t, obj, result.object)
	e.ReleaseSession(2)
	require.Nil(t, result.object)
	require.Zero(t, result.refs.Load(), "it is released with its object")
	require.Zero(t, e.Objects.Count())
	var stale *status.StaleError
	_, err = e.Objects.ReferAgain(obj.ID, 1, 3)
	require.ErrorAs(t, err, &stale)
	require.Equal(t, status.StaleObjectMissing, stale.Reason)
	_, err = e.ReleaseReference(obj.ID, 0, 1)
	require.ErrorAs(t, err, &stale)
}

// Destroy removes an object from all sessions. The references of one session are limited.
func TestObjectDestroyed(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	obj, _ := object(t, e, 1)
	for range 2 {
		_, err := e.Objects.ReferAgain(obj.ID, 1, 3)
		require.NoError(t, err)
	}
	_, err := e.Objects.ReferAgain(obj.ID, 1, 3)
	require.ErrorIs(t, err, status.ErrLimit)
	_, err = e.Objects.ReferAgain(obj.ID, 2, 3)
	require.NoError(t, err)
	sessions, was, err := e.Destroy(obj.ID)
	require.NoError(t, err)
	require.ElementsMatch(t, []uint64{1, 2}, sessions)
	require.EqualValues(t, 4, was.Refs)
	require.Zero(t, e.Objects.HeldBy(1))
	_, _, err = e.Destroy(obj.ID)
	require.Error(t, err)
}

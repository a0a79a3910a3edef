package cache

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestWaitersShareOneBuild(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{})
		g := newGate()
		var waiting []chan outcome
		for range 5 {
			waiting = append(waiting, getting(ctx, c, "a", g.load))
		}
		synctest.Wait()
		require.Equal(t, 1, c.Stats().Builds)
		close(g.opened)
		for _, w := range waiting {
			o := <-w
			require.NoError(t, o.err)
			require.Same(t, g.value, o.ref.Value())
			require.NoError(t, o.ref.Close())
		}
		require.Equal(t, int32(1), g.starts.Load())
		s := c.Stats()
		require.Equal(t, []uint64{0, 1, 4}, []uint64{s.Hits, s.Misses, s.Joins})
		require.Equal(t, 1, s.Entries)
		require.Zero(t, s.PinnedEntries)
	})
}

func TestOneWhoLeavesTakesNothingFromTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{})
		g := newGate()
		cause := errors.New("client went away")
		first, leave := context.WithCancelCause(ctx)
		starter := getting(first, c, "a", g.load)
		synctest.Wait()
		joiner := getting(ctx, c, "a", unexpected)
		synctest.Wait()

		leave(cause)
		require.ErrorIs(t, (<-starter).err, cause)
		close(g.opened)
		o := <-joiner
		require.NoError(t, o.err)
		require.Same(t, g.value, o.ref.Value())
		require.NoError(t, o.ref.Close())
	})
}

func TestBuildIsCancelledWhenTheLastWaiterLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{})
		g := newGate()
		first, leaveFirst := context.WithCancel(ctx)
		second, leaveSecond := context.WithCancelCause(ctx)
		a, b := getting(first, c, "a", g.load), getting(second, c, "a", g.load)
		synctest.Wait()
		leaveFirst()
		<-a
		synctest.Wait()
		require.NoError(t, g.cause, "one still waits")
		errFull := errors.New("the batch is full")
		leaveSecond(errFull)
		require.ErrorIs(t, (<-b).err, errFull)
		synctest.Wait()
		require.ErrorIs(t, g.cause, ErrAbandoned)
		require.ErrorIs(t, g.cause, errFull, "and why the last one left")
		require.Zero(t, c.Stats().Builds)
		require.Zero(t, c.Stats().Failures, "giving up is not failing")
	})
}

func TestBuildThatGoesOnForNobodyIsClosedAndDoesNotStandInTheWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{})
		g := newGate()
		leaving, leave := context.WithCancel(ctx)
		gone := getting(leaving, c, "a", g.stubborn)
		synctest.Wait()
		leave()
		<-gone

		fresh := put(t, c, "a", 1)
		close(g.opened)
		synctest.Wait()
		require.Equal(t, int32(1), g.value.closed.Load())
		require.False(t, fresh.isClosed())
		require.True(t, has(c, "a"))
	})
}

func TestContextOfTheBuild(t *testing.T) {
	t.Parallel()
	type valueKey struct{}
	c := newCache(t, Options[*resource]{})
	caller, cancel := context.WithCancel(context.WithValue(ctx, valueKey{}, "trace"))
	ref, err := c.Get(caller, key("a"), func(inner context.Context) (*resource, error) {
		require.Equal(t, "trace", inner.Value(valueKey{}))
		_, limited := inner.Deadline()
		require.False(t, limited)
		return &resource{}, nil
	})
	require.NoError(t, err)
	cancel()
	again, err := c.Get(caller, key("a"), unexpected)
	require.NoError(t, err, "what is there costs no waiting")
	_, err = c.Get(caller, key("b"), unexpected)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, ref.Close())
	require.NoError(t, again.Close())
}

func TestAloneBuildsBesideOthersAndTheLastStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{})
		shared, alone := newGate(), newGate()
		first := getting(ctx, c, "a", shared.load)
		synctest.Wait()
		second := make(chan outcome, 1)
		go func() {
			ref, err := c.GetAlone(ctx, key("a"), alone.load)
			second <- outcome{ref, err}
		}()
		synctest.Wait()
		joiner := getting(ctx, c, "a", unexpected)
		synctest.Wait()
		require.Equal(t, 2, c.Stats().Builds)

		close(alone.opened)
		o := <-second
		require.Same(t, alone.value, o.ref.Value())
		require.NoError(t, o.ref.Close())
		require.False(t, alone.value.isClosed(), "kept")
		close(shared.opened)
		for _, w := range []chan outcome{first, joiner} {
			o := <-w
			require.NoError(t, o.err)
			require.Same(t, shared.value, o.ref.Value())
			require.NoError(t, o.ref.Close())
		}
		synctest.Wait()
		require.True(t, alone.value.isClosed(), "replaced")
		require.Equal(t, 1, c.Stats().Entries)
	})
}

func TestBuildThatEndsLeavesOthersOfItsKeyJoinable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{})
		g := newGate()
		first := getting(ctx, c, "a", g.load)
		synctest.Wait()
		_, err := c.GetAlone(ctx, key("a"), unexpected)
		require.Error(t, err)
		joiner := getting(ctx, c, "a", unexpected)
		synctest.Wait()
		close(g.opened)
		for _, w := range []chan outcome{first, joiner} {
			o := <-w
			require.NoError(t, o.err)
			require.NoError(t, o.ref.Close())
		}
	})
}

// Every failure of a build reaches all waiters, leaves nothing behind, and the next Get builds again.
func TestFailuresReachAllWaitersAndAreNotCached(t *testing.T) {
	t.Parallel()
	failure := errors.New("no such model")
	tests := []struct {
		name string
		end  func() (*resource, error)
		want error
		text string
	}{
		{"error", func() (*resource, error) { return &resource{}, failure }, failure, "no such model"},
		{"panic", func() (*resource, error) { panic("boom") }, ErrPanic, "build of g/a: panic: boom"},
		{"panic with an error", func() (*resource, error) { panic(io.ErrUnexpectedEOF) }, io.ErrUnexpectedEOF, "unexpected EOF"},
		{"panic with nil", func() (*resource, error) { panic(nil) }, ErrPanic, "nil"},
		{"goexit", func() (*resource, error) { runtime.Goexit(); return nil, nil }, ErrGoexit, "g/a"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCache(t, Options[*resource]{})
				opened := make(chan struct{})
				load := func(context.Context) (*resource, error) { <-opened; return test.end() }
				a, b := getting(ctx, c, "a", load), getting(ctx, c, "a", load)
				synctest.Wait()
				close(opened)
				for _, w := range []chan outcome{a, b} {
					o := <-w
					require.ErrorIs(t, o.err, test.want)
					require.ErrorContains(t, o.err, test.text)
					require.Nil(t, o.ref)
				}
				require.Equal(t, Stats{Misses: 1, Joins: 1, Failures: 1}, c.Stats())
				put(t, c, "a", 1)
			})
		})
	}
}

func TestPanicErrorHasTheStack(t *testing.T) {
	t.Parallel()
	c := newCache(t, Options[*resource]{})
	_, err := c.Get(ctx, key("a"), func(context.Context) (*resource, error) { panic("boom") })
	var p *PanicError
	require.ErrorAs(t, err, &p)
	require.Contains(t, string(p.Stack), "TestPanicErrorHasTheStack")
	require.NotContains(t, err.Error(), "goroutine")
}

func TestCostThatEndsBadlyLosesNoValue(t *testing.T) {
	t.Parallel()
	for _, end := range []func(){func() { panic("boom") }, runtime.Goexit} {
		c := New(Options[*resource]{
			Cost:    func(Key, *resource) int64 { end(); return 0 },
			OnEvict: func(_ Key, r *resource) { r.closed.Add(1) },
		})
		r := &resource{}
		_, err := c.Get(ctx, key("a"), give(r))
		require.True(t, errors.Is(err, ErrPanic) || errors.Is(err, ErrGoexit), "%v", err)
		require.NoError(t, c.Close(ctx))
		require.Equal(t, int32(1), r.closed.Load())
	}
}

// A build may get another key, and is cancelled together with it when its only waiter leaves.
func TestBuildGetsAnotherKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options[*resource]{})
		waiting, leave := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			_, err := c.Get(waiting, key("a"), func(outer context.Context) (*resource, error) {
				_, err := c.Get(outer, key("b"), func(inner context.Context) (*resource, error) {
					<-inner.Done()
					ended <- context.Cause(inner)
					return nil, context.Cause(inner)
				})
				return nil, err
			})
			ended <- err
		}()
		synctest.Wait()
		leave()
		require.ErrorIs(t, <-ended, context.Canceled)
		require.ErrorIs(t, <-ended, context.Canceled)
		synctest.Wait()
		ref, err := c.Get(ctx, key("a"), func(outer context.Context) (*resource, error) {
			ref, err := c.Get(outer, key("b"), give(&resource{}))
			require.NoError(t, err)
			return &resource{}, ref.Close()
		})
		require.NoError(t, err)
		require.NoError(t, ref.Close())
	})
}

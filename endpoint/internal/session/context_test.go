package session

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var errWhy = errors.New("why")

func TestContextEndsWithParent(t *testing.T) {
	t.Parallel()
	parent, cancel := context.WithCancelCause(context.Background())
	asked, unasked := &Context{parent: parent}, &Context{parent: parent}
	require.NoError(t, unasked.Err())
	done := asked.Done()
	cancel(errWhy)
	<-done
	for _, c := range []*Context{asked, unasked} {
		require.ErrorIs(t, c.Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(c), errWhy)
		<-c.Done()
		c.end(nil)
	}
}

func TestContextEnd(t *testing.T) {
	t.Parallel()
	for _, ask := range []func(context.Context){func(context.Context) {}, func(c context.Context) { c.Done() }} {
		c := &Context{parent: context.Background()}
		ask(c)
		c.end(errWhy)
		c.end(nil)
		require.ErrorIs(t, c.Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(c), errWhy, "the first cause wins")
		<-c.Done()
	}
	c := &Context{parent: context.Background()}
	c.end(nil)
	require.ErrorIs(t, context.Cause(c), context.Canceled)
}

func TestContextDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, ask := range []bool{true, false} {
			c := &Context{parent: context.Background(), deadline: time.Now().Add(time.Second)}
			if ask {
				c.Done()
			}
			deadline, ok := c.Deadline()
			require.True(t, ok)
			require.Equal(t, time.Second, time.Until(deadline))
			require.NoError(t, c.Err())
			time.Sleep(time.Second)
			synctest.Wait()
			require.ErrorIs(t, c.Err(), context.DeadlineExceeded)
			<-c.Done()
			require.ErrorIs(t, context.Cause(c), context.DeadlineExceeded)
			c.end(nil)
		}
	})
}

func TestContextChildren(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	c := &Context{parent: context.Background()}
	below, cancel := context.WithTimeout(c, time.Hour)
	defer cancel()
	// goroutines of earlier tests may still be ending
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines, "package context needs no goroutine")
	c.end(errWhy)
	<-below.Done()
	require.ErrorIs(t, context.Cause(below), errWhy)
}

// parentContext counts the functions that are registered with it.
type parentContext struct {
	context.Context
	registered atomic.Int64
}

// Value hides the context of package context; otherwise package context would register with that.
func (*parentContext) Value(any) any { return nil }

// AfterFunc is called by package context to register with a context of another package.
func (p *parentContext) AfterFunc(f func()) (stop func() bool) {
	p.registered.Add(1)
	detach := context.AfterFunc(p.Context, f)
	return func() bool {
		if !detach() {
			return false
		}
		p.registered.Add(-1)
		return true
	}
}

// The end of a request removes its registrations with the contexts of its session and its caller.
func TestContextReleasesParents(t *testing.T) {
	t.Parallel()
	for name, deadline := range map[string]time.Time{"without deadline": {}, "with deadline": time.Now().Add(time.Hour)} {
		for _, endedFirst := range []bool{false, true} {
			running, stop := context.WithCancel(t.Context())
			defer stop()
			session, caller := &parentContext{Context: running}, &parentContext{Context: running}
			c := &Context{parent: session, caller: caller, deadline: deadline}
			if endedFirst { // the function keeps the context beyond its call
				c.end(nil)
			}
			done := c.Done()
			if !endedFirst {
				require.EqualValues(t, 1, session.registered.Load(), name)
				require.EqualValues(t, 1, caller.registered.Load(), name)
				c.end(nil)
			}
			<-done
			require.Zero(t, session.registered.Load(), name)
			require.Zero(t, caller.registered.Load(), name)
		}
	}
}

// The earlier of the deadlines of the request and its caller applies.
func TestContextEarlierDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, row := range []struct{ request, caller time.Duration }{{time.Minute, time.Second}, {time.Second, time.Minute}, {time.Second, 0}, {0, time.Second}} {
			for _, use := range []bool{false, true} {
				c := &Context{parent: t.Context(), caller: t.Context()}
				if row.request > 0 {
					c.deadline = time.Now().Add(row.request)
				}
				if row.caller > 0 {
					caller, cancel := context.WithTimeout(t.Context(), row.caller)
					defer cancel()
					c.caller = caller
				}
				if use {
					c.Done()
				}
				at, ok := c.Deadline()
				require.True(t, ok)
				require.Equal(t, time.Second, time.Until(at))
				require.NoError(t, c.Err())
				time.Sleep(time.Second)
				synctest.Wait()
				require.ErrorIs(t, c.Err(), context.DeadlineExceeded)
				<-c.Done()
				c.end(nil)
			}
		}
	})
}

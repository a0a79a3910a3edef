package session

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var errWhy = errors.New("why")

func TestCallContextEndsWithParent(t *testing.T) {
	parent, cancel := context.WithCancelCause(context.Background())
	asked, unasked := &callContext{parent: parent}, &callContext{parent: parent}
	require.NoError(t, unasked.Err())
	done := asked.Done()
	cancel(errWhy)
	<-done
	for _, c := range []*callContext{asked, unasked} {
		require.ErrorIs(t, c.Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(c), errWhy)
		<-c.Done()
		c.end(nil)
	}
}

func TestCallContextEnd(t *testing.T) {
	for _, ask := range []func(context.Context){func(context.Context) {}, func(c context.Context) { c.Done() }} {
		c := &callContext{parent: context.Background()}
		ask(c)
		c.end(errWhy)
		c.end(nil)
		require.ErrorIs(t, c.Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(c), errWhy, "the first cause stays")
		<-c.Done()
	}
	c := &callContext{parent: context.Background()}
	c.end(nil)
	require.ErrorIs(t, context.Cause(c), context.Canceled)
}

func TestCallContextDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ask := range []bool{true, false} {
			c := &callContext{parent: context.Background(), deadline: time.Now().Add(time.Second)}
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

func TestCallContextChildren(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	c := &callContext{parent: context.Background()}
	below, cancel := context.WithTimeout(c, time.Hour)
	defer cancel()
	// Those of tests before this one may still be ending.
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines, "package context needs no goroutine to pass the end on")
	c.end(errWhy)
	<-below.Done()
	require.ErrorIs(t, context.Cause(below), errWhy)
}

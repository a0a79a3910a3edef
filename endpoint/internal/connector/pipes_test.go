package connector

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// piped returns the connector of a client whose owner accepts connections within the process and does not answer.
func piped(t *testing.T) *Connector {
	c := New(Config{DialSelf: func() (*inproc.Pipe, message.Hello, error) {
		_, theirs := inproc.New(wire.Limits{}, wire.Limits{})
		return theirs, message.Hello{Server: "one"}, nil
	}})
	t.Cleanup(c.Close)
	return c
}

var errBroken = errors.New("broken")

// Attempts on a healthy connection whose owner is unavailable have growing pauses. They end at the deadline, or after
// maxRepeats without one.
func TestEstablishBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := piped(t)
		tries, answer := 0, fmt.Errorf("busy: %w", status.ErrUnavailable)
		establish := func(*link.Link) error {
			if tries++; tries > 1000 {
				return errors.New("asked without pauses")
			}
			return answer
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := c.Establish(ctx, false, establish)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, answer)
		require.Greater(t, tries, 10)
		require.Less(t, tries, 40)

		tries = 0
		require.ErrorIs(t, c.Establish(t.Context(), false, establish), answer)
		require.Equal(t, 1+maxRepeats, tries)

		waiting, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		tries = 0
		require.ErrorIs(t, c.Establish(waiting, true, establish), context.Canceled)
		require.Greater(t, tries, 1+maxRepeats)

		tries, answer = 0, errBroken
		require.ErrorIs(t, c.Establish(t.Context(), true, establish), errBroken)
		require.Equal(t, 1, tries)
	})
}

// jobs are dependents that need a connection. The function returns the jobs of Resume.
type jobs func(l *link.Link) []func(context.Context) error

func (jobs) Needed() bool                                        { return true }
func (j jobs) Resume(l *link.Link) []func(context.Context) error { return j(l) }
func (jobs) Lost(*link.Link)                                     {}
func (jobs) End()                                                {}

// A connection on which a dependent could not be resumed is closed, so that the next one resumes it. A newer connection
// is not closed.
func TestResumeErrorCutsConnection(t *testing.T) {
	fail := func(context.Context) error { return errBroken }
	t.Run("next", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := piped(t)
			var resumed atomic.Pointer[link.Link]
			c.AddDependents(jobs(func(l *link.Link) []func(context.Context) error { resumed.Store(l); return nil }))
			first, err := c.ConnectNow(t.Context())
			require.NoError(t, err)
			c.OnNext(func(ctx context.Context, l *link.Link) error {
				require.Equal(t, first, l)
				return fail(ctx)
			})
			synctest.Wait()
			require.Error(t, first.Reason())
			second, err := c.Connected(t.Context())
			require.NoError(t, err)
			require.NotSame(t, first, second)
			require.Same(t, second, resumed.Load())
		})
	})
	t.Run("catch-up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := piped(t)
			asked := 0
			c.AddDependents(jobs(func(*link.Link) []func(context.Context) error {
				if asked++; asked == 2 { // after the first connection was resumed
					return []func(context.Context) error{fail}
				}
				return nil
			}))
			first, err := c.ConnectNow(t.Context())
			require.NoError(t, err)
			synctest.Wait()
			require.Error(t, first.Reason())
			second, err := c.Connected(t.Context())
			require.NoError(t, err)
			synctest.Wait()
			require.NoError(t, second.Reason())
			require.GreaterOrEqual(t, asked, 4)
		})
	})
	t.Run("catch-up after the end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := piped(t)
			asked, release := 0, make(chan struct{})
			c.AddDependents(jobs(func(*link.Link) []func(context.Context) error {
				if asked++; asked == 2 {
					return []func(context.Context) error{func(ctx context.Context) error { <-release; return fail(ctx) }}
				}
				return nil
			}))
			first, err := c.ConnectNow(t.Context())
			require.NoError(t, err)
			first.Cut()
			second, err := c.Connected(t.Context())
			require.NoError(t, err)
			require.NotSame(t, first, second)
			close(release)
			synctest.Wait()
			require.NoError(t, second.Reason())
		})
	})
}

package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// piped returns the connector of a client whose owner accepts connections within the process and does not answer.
func piped(t *testing.T) *Client {
	c := New(Config{DialSelf: func() (*transport.Pipe, message.Hello, error) {
		_, theirs := transport.NewPipe(wire.Limits{}, wire.Limits{})
		return theirs, message.Hello{Server: "one"}, nil
	}})
	t.Cleanup(c.Close)
	return c
}

var errBroken = errors.New("broken")

// Attempts on a healthy connection whose owner is unavailable have growing pauses. They end at the deadline, or after
// maxRepeats without one.
func TestEstablishBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := piped(t)
		tries, answer := 0, fmt.Errorf("busy: %w", status.ErrUnavailable)
		establish := func(*Conn) error {
			if tries++; tries > 1000 {
				return errors.New("asked without pauses")
			}
			return answer
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := c.establish(ctx, false, establish)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, answer)
		require.Greater(t, tries, 10)
		require.Less(t, tries, 40)

		tries = 0
		require.ErrorIs(t, c.establish(t.Context(), false, establish), answer)
		require.Equal(t, 1+maxRepeats, tries)

		waiting, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		tries = 0
		require.ErrorIs(t, c.establish(waiting, true, establish), context.Canceled)
		require.Greater(t, tries, 1+maxRepeats)

		tries, answer = 0, errBroken
		require.ErrorIs(t, c.establish(t.Context(), true, establish), errBroken)
		require.Equal(t, 1, tries)
	})
}

// fakeDependent is a dependent whose methods are the fields.
type fakeDependent struct {
	needs func(conn *Conn) bool
	begin func(ctx context.Context) error
}

func (d *fakeDependent) needsResume(conn *Conn) bool               { return d.needs(conn) }
func (d *fakeDependent) resume(ctx context.Context, _ *Conn) error { return d.begin(ctx) }
func (d *fakeDependent) lost(*Conn)                                {}
func (d *fakeDependent) end()                                      {}

// A connection on which a dependent could not be resumed is closed, so that the next one resumes it. A newer connection
// is not closed.
func TestResumeErrorCutsConnection(t *testing.T) {
	t.Parallel()
	fail := func(context.Context) error { return errBroken }
	t.Run("next", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := piped(t)
			var resumed atomic.Pointer[Conn]
			c.add(&fakeDependent{needs: func(conn *Conn) bool { resumed.Store(conn); return false }})
			first, err := c.ConnectNow(t.Context())
			require.NoError(t, err)
			c.onNext(func(ctx context.Context, conn *Conn) error {
				require.Equal(t, first, conn)
				return fail(ctx)
			})
			synctest.Wait()
			require.Error(t, first.reason())
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
			needs := func(*Conn) bool { asked++; return asked == 2 } // after the first connection was resumed
			c.add(&fakeDependent{needs, fail})
			first, err := c.ConnectNow(t.Context())
			require.NoError(t, err)
			synctest.Wait()
			require.Error(t, first.reason())
			second, err := c.Connected(t.Context())
			require.NoError(t, err)
			synctest.Wait()
			require.NoError(t, second.reason())
			require.GreaterOrEqual(t, asked, 4)
		})
	})
	t.Run("catch-up after the end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := piped(t)
			asked, release := 0, make(chan struct{})
			needs := func(*Conn) bool { asked++; return asked == 2 }
			c.add(&fakeDependent{needs, func(ctx context.Context) error { <-release; return fail(ctx) }})
			first, err := c.ConnectNow(t.Context())
			require.NoError(t, err)
			first.cut()
			second, err := c.Connected(t.Context())
			require.NoError(t, err)
			require.NotSame(t, first, second)
			close(release)
			synctest.Wait()
			require.NoError(t, second.reason())
		})
	})
}

// lives is a dependent on at most one connection.
type lives struct {
	conn  *Conn
	ended bool
}

func (d *lives) needsResume(conn *Conn) bool { return d.conn != conn }

func (d *lives) resume(_ context.Context, conn *Conn) error {
	d.conn = conn
	return nil
}

func (d *lives) lost(conn *Conn) {
	if d.conn == conn {
		d.conn = nil
	}
}

func (d *lives) end() { d.ended = true }

// Dependents move from one connection to the next and end with the client.
func TestDependentsFollowConnections(t *testing.T) {
	t.Parallel()
	c := newClient()
	one, two := new(Conn), new(Conn)
	stays, moves := &lives{conn: two}, &lives{conn: one}
	require.True(t, c.add(stays))
	require.True(t, c.add(moves))

	c.lost(one)
	require.Nil(t, moves.conn)
	require.Equal(t, two, stays.conn, "it was on another connection")
	jobs := c.toResume(two, false)
	require.Len(t, jobs, 1)
	require.NoError(t, allWhileAnswered(t.Context(), jobs))
	require.Empty(t, c.toResume(two, false))

	c.remove(stays)
	require.Equal(t, []*lives{moves}, All[*lives](c.Connector))
	require.Empty(t, All[*Lease](c.Connector))
	c.Close()
	require.True(t, moves.ended)
	require.False(t, stays.ended, "it was removed")
	require.False(t, c.add(stays), "the client was closed")
}

// A closed client ends its dependents once and refuses requests.
func TestConnectorClosed(t *testing.T) {
	t.Parallel()
	c := New(Config{Socket: "nowhere.sock"})
	d := new(lives)
	require.True(t, c.add(d))
	changed := c.Changed()
	c.Close()
	c.Close()
	<-changed
	require.True(t, d.ended)
	state, server, _ := c.Standing()
	require.Equal(t, State{Closed: true}, state)
	require.Empty(t, server)
	_, err := c.Connected(t.Context())
	require.ErrorContains(t, err, "client of nowhere.sock")
	c.Go(func() { t.Error("work is begun after Close") })
	c.onNext(func(context.Context, *Conn) error { t.Error("there is no connection"); return nil })
}

func TestReconnectWhileServerAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var inFlight, most, ended atomic.Int64
		jobs := make([]func(context.Context) error, 20*resumeAtOnce)
		for i := range jobs {
			jobs[i] = func(ctx context.Context) error {
				most.Store(max(most.Load(), inFlight.Add(1)))
				defer inFlight.Add(-1)
				time.Sleep(resumeSilence / 2)
				ended.Add(1)
				return ctx.Err()
			}
		}
		start := time.Now()
		require.NoError(t, allWhileAnswered(context.Background(), jobs))
		require.Equal(t, 10*resumeSilence, time.Since(start))
		require.EqualValues(t, len(jobs), ended.Load())
		require.EqualValues(t, resumeAtOnce, most.Load())
	})
}

func TestReconnectSilentServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
		quick := func(context.Context) error { time.Sleep(time.Second); return nil }
		start := time.Now()
		err := allWhileAnswered(context.Background(), []func(context.Context) error{quick, silent, quick, silent})
		require.ErrorIs(t, err, errUnresponsive)
		require.ErrorIs(t, err, status.ErrUnavailable)
		require.Equal(t, resumeSilence+time.Second, time.Since(start))

		broken := errors.New("broken")
		fail := func(context.Context) error { return broken }
		require.ErrorIs(t, allWhileAnswered(context.Background(), []func(context.Context) error{silent, fail, silent}), broken)
		require.NoError(t, allWhileAnswered(context.Background(), nil))
	})
}

package client

import (
	"context"
	"errors"
	"fmt"
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

// fakeContent requests a ping on each connection.
type fakeContent struct {
	record
	name  string
	log   *[]string
	fails error // of its request
	errs  []error
}

func newFake(c *Client, name string, log *[]string) *fakeContent {
	f := &fakeContent{name: name, log: log}
	f.record = record{of: c.Connector, content: f}
	return f
}

func (f *fakeContent) note(what string) { *f.log = append(*f.log, f.name+" "+what) }

func (f *fakeContent) askLocked(*Conn) (Request, error) {
	f.note("asked")
	return Request{Op: message.OpPing}, f.fails
}

func (f *fakeContent) acceptLocked(frame wire.Frame) (more bool, err error) {
	f.note("accepted")
	return false, nil
}

func (f *fakeContent) refused(err error) {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	f.note("refused")
	f.errs = append(f.errs, err)
}

func (f *fakeContent) lostLocked(*Conn) {
	if f.held {
		f.note("lost")
	}
}
func (f *fakeContent) endLocked(error) { f.note("ended") }
func (f *fakeContent) release(*Conn)   { f.note("released") }

// took returns what the fakes have recorded since the last call.
func took(c *Client, log *[]string) []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	list := *log
	*log = nil
	return list
}

// Records move from one connection to the next, in the order in which they were added, and end with the client.
func TestRecordsFollowConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner := newPipeOwner()
		c := owner.client()
		var log []string
		a, b := newFake(c, "a", &log), newFake(c, "b", &log)
		require.True(t, c.add(&a.record))
		require.True(t, c.add(&b.record))
		_, attempt, err := c.connOrAttempt(true)
		require.NoError(t, err)
		w := owner.next()
		require.Equal(t, []string{"a asked", "b asked"}, took(c, &log))
		first, second := w.request(message.OpPing), w.request(message.OpPing)
		w.respond(second)
		require.Equal(t, []string{"b accepted"}, took(c, &log))
		select {
		case <-attempt.done:
			require.Fail(t, "requests do not wait for the table")
		default:
		}
		w.respond(first)
		<-attempt.done
		require.NoError(t, attempt.err)
		require.Equal(t, []string{"a accepted"}, took(c, &log))

		require.True(t, c.end(&b.record, errBroken))
		require.Equal(t, []string{"b ended", "b released"}, took(c, &log))
		require.False(t, c.end(&b.record, errBroken), "the second time")
		late := newFake(c, "late", &log)
		require.True(t, c.add(&late.record))
		w.respond(w.request(message.OpPing))
		require.Equal(t, []string{"late asked", "late accepted"}, took(c, &log))

		require.NoError(t, w.pipe.Send(wire.KindGoodbye, 0, nil))
		w = owner.next()
		require.ElementsMatch(t, []string{"a lost", "late lost", "a asked", "late asked"}, took(c, &log))
		w.request(message.OpPing)
		w.refuse(w.request(message.OpPing), message.CodePermissionDenied)
		require.Equal(t, []string{"late refused"}, took(c, &log))
		require.Len(t, late.errs, 1)
		require.Len(t, All[*fakeContent](c.Connector), 2, "a refusal does not end a record")
		require.Empty(t, All[*Lease](c.Connector))
		c.Close()
		require.ElementsMatch(t, []string{"a ended", "late ended"}, took(c, &log))
		require.ErrorIs(t, a.ended, status.ErrClosed)
		require.False(t, c.add(&newFake(c, "closed", &log).record))
	})
}

// A record that is added while its connection ends is requested on the next one.
func TestRecordOfEndedConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner := newPipeOwner()
		c := owner.client()
		defer c.Close()
		conn, err := c.ConnectNow(t.Context())
		require.NoError(t, err)
		owner.next().pipe.Close()
		synctest.Wait()
		require.Error(t, conn.reason())
		var log []string
		a := newFake(c, "a", &log)
		c.mu.Lock()
		require.True(t, c.addHeldLocked(&a.record, conn))
		require.False(t, a.held)
		c.mu.Unlock()
		w := owner.next()
		w.respond(w.request(message.OpPing))
		require.Equal(t, []string{"a asked", "a accepted"}, took(c, &log))
		require.True(t, a.held)
	})
}

// A request that the owner cannot answer now is sent again after a pause. Other errors are refusals. The connection stays.
func TestRecordsOfUnavailableOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner := newPipeOwner()
		c := owner.client()
		defer c.Close()
		var log []string
		a, b := newFake(c, "a", &log), newFake(c, "b", &log)
		b.fails = errBroken
		require.True(t, c.add(&a.record))
		require.True(t, c.add(&b.record))
		_, attempt, err := c.connOrAttempt(true)
		require.NoError(t, err)
		w := owner.next()
		for range 10 {
			w.refuse(w.request(message.OpPing), message.CodeUnavailable)
		}
		<-attempt.done
		w.respond(w.request(message.OpPing))
		synctest.Wait()
		require.True(t, a.held)
		require.Empty(t, a.errs)
		require.False(t, b.held)
		require.Equal(t, []error{errBroken}, b.errs)
		require.NoError(t, attempt.conn.reason())
		w.idle()
	})
}

// A closed client ends its records once and refuses requests.
func TestConnectorClosed(t *testing.T) {
	t.Parallel()
	c := New(Config{Socket: "nowhere.sock"})
	var log []string
	require.True(t, c.add(&newFake(c, "a", &log).record))
	changed := c.Changed()
	c.Close()
	c.Close()
	<-changed
	require.Equal(t, []string{"a ended"}, log)
	state, server, _ := c.Standing()
	require.Equal(t, State{Closed: true}, state)
	require.Empty(t, server)
	_, err := c.Connected(t.Context())
	require.ErrorContains(t, err, "client of nowhere.sock")
	c.Go(func() { t.Error("work is begun after Close") })
}

// A table of any size is sent while the owner answers, with a limited number of unanswered requests. Requests of callers
// wait for it.
func TestReconnectWhileServerAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner := newPipeOwner()
		c := owner.client()
		defer c.Close()
		var log []string
		const rounds = 20
		for range rounds * resumeAtOnce {
			require.True(t, c.add(&newFake(c, "", &log).record))
		}
		start := time.Now()
		_, attempt, err := c.connOrAttempt(true)
		require.NoError(t, err)
		w := owner.next()
		for range rounds {
			var ids []uint64
			for range resumeAtOnce {
				ids = append(ids, w.request(message.OpPing))
			}
			w.idle()
			time.Sleep(resumeSilence / 2)
			for _, id := range ids {
				w.respond(id)
			}
		}
		<-attempt.done
		require.NoError(t, attempt.err)
		require.Equal(t, rounds*resumeSilence/2, time.Since(start))
		w.idle()
	})
}

// An owner that does not answer the requests of the table delays the requests of callers for a limited time. The
// connection stays, and late answers are accepted.
func TestReconnectSilentServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner := newPipeOwner()
		c := owner.client()
		defer c.Close()
		var log []string
		quick, slow := newFake(c, "quick", &log), newFake(c, "slow", &log)
		require.True(t, c.add(&quick.record))
		require.True(t, c.add(&slow.record))
		start := time.Now()
		_, attempt, err := c.connOrAttempt(true)
		require.NoError(t, err)
		w := owner.next()
		first, second := w.request(message.OpPing), w.request(message.OpPing)
		time.Sleep(time.Second)
		w.respond(first)
		<-attempt.done
		require.NoError(t, attempt.err)
		require.Equal(t, resumeSilence+time.Second, time.Since(start))
		require.True(t, quick.held)
		require.False(t, slow.held)
		time.Sleep(time.Hour)
		w.respond(second)
		synctest.Wait()
		require.True(t, slow.held)
		require.NoError(t, attempt.conn.reason())
	})
}

// A connection that ends before its table is answered fails the attempt, and the next attempt sends the table again.
func TestConnectionEndsDuringTable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owner := newPipeOwner()
		c := owner.client()
		defer c.Close()
		var log []string
		a := newFake(c, "a", &log)
		require.True(t, c.add(&a.record))
		_, attempt, err := c.connOrAttempt(true)
		require.NoError(t, err)
		w := owner.next()
		w.request(message.OpPing)
		w.pipe.Close()
		<-attempt.done
		require.ErrorIs(t, attempt.err, status.ErrUnavailable)
		w = owner.next()
		w.request(message.OpPing)
		require.NoError(t, w.pipe.Send(wire.KindGoodbye, 0, nil)) // the next attempt begins without a pause
		again := time.Now()
		w = owner.next()
		require.Zero(t, time.Since(again))
		w.respond(w.request(message.OpPing))
		synctest.Wait()
		require.True(t, a.held)
	})
}

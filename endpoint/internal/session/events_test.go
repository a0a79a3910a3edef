package session

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
)

// fakeSource is a source whose events a test adds.
type fakeSource struct {
	weight int
	opened []any // events from the start

	mu     sync.Mutex
	wake   func()
	events []any
	closed int
}

func (s *fakeSource) Weight() int      { return s.weight }
func (s *fakeSource) Open(wake func()) { s.wake, s.events = wake, s.opened }
func (s *fakeSource) Opening() bool    { return len(s.opened) > 0 }
func (s *fakeSource) Close()           { s.mu.Lock(); s.closed++; s.mu.Unlock() }
func (s *fakeSource) Take() (all []any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, s.events = s.events, nil
	return all
}

// add adds events and wakes the subscription.
func (s *fakeSource) add(events ...any) {
	s.mu.Lock()
	s.events = append(s.events, events...)
	s.mu.Unlock()
	s.wake()
}

// fakeConn records the requests whose events were sent. Sends block while it is held, and fail with err.
type fakeConn struct {
	mu   sync.Mutex
	sent []uint64
	cut  int
	err  error
	hold chan struct{}
}

func (c *fakeConn) sendEvent(request uint64, _ []byte) error {
	if c.hold != nil {
		<-c.hold
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	c.sent = append(c.sent, request)
	return nil
}

func (c *fakeConn) Cut() { c.mu.Lock(); c.cut++; c.mu.Unlock() }

// newEvents returns a set whose subscriptions have at most 4 names.
func newEvents(conn *fakeConn) (*Events, *sync.WaitGroup) {
	s, work := &Events{}, &sync.WaitGroup{}
	s.init(conn, 4, work)
	return s, work
}

// Events wait until the request of their subscription was answered. Later ones are sent at once.
func TestEventsBeginAfterTheAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := &fakeConn{}
		s, _ := newEvents(conn)
		quiet, initial := &fakeSource{weight: 1}, &fakeSource{weight: 1, opened: []any{1, 2}}
		a, err := s.Add(1, quiet)
		require.NoError(t, err)
		b, err := s.Add(2, initial)
		require.NoError(t, err)
		quiet.add("early")
		synctest.Wait()
		require.Empty(t, conn.sent)
		s.Begin(a)
		synctest.Wait()
		require.Equal(t, []uint64{1}, conn.sent)
		s.Begin(b)
		quiet.add("late", "later")
		synctest.Wait()
		require.ElementsMatch(t, []uint64{1, 2, 2, 1, 1}, conn.sent)
		s.AddImplicit(initial)
		initial.add(3)
		synctest.Wait()
		require.Equal(t, uint64(0), conn.sent[len(conn.sent)-1])
		s.stop()
	})
}

// While the client does not read, events collect in their source, and one goroutine sends.
func TestEventsOfSlowClientCollect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := &fakeConn{hold: make(chan struct{})}
		s, work := newEvents(conn)
		from := &fakeSource{weight: 1}
		sub, err := s.Add(1, from)
		require.NoError(t, err)
		s.Begin(sub)
		for range 5 {
			from.add("event")
			synctest.Wait()
		}
		require.Len(t, from.events, 4, "the first is being sent")
		close(conn.hold)
		synctest.Wait()
		require.Len(t, conn.sent, 5)
		work.Wait()
		s.stop()
	})
}

// The weight of a client's subscriptions is limited, except for the first one. An id has one subscription.
func TestEventsLimited(t *testing.T) {
	t.Parallel()
	s, _ := newEvents(&fakeConn{})
	all := &fakeSource{weight: MaxNames}
	_, err := s.Add(1, all)
	require.NoError(t, err, "a watch of all names")
	_, err = s.Add(2, &fakeSource{weight: 1})
	require.ErrorIs(t, err, status.ErrLimit)
	_, err = s.Add(1, &fakeSource{weight: 1})
	require.ErrorIs(t, err, wire.ErrProtocol)
	_, err = s.Add(3, &fakeSource{})
	require.NoError(t, err, "no weight")
	require.Equal(t, 1, s.Len())
	require.Equal(t, MaxNames, s.Weight())
	require.True(t, s.Has(3))
	require.True(t, s.Remove(1))
	require.False(t, s.Remove(1))
	require.Equal(t, 1, all.closed)
	require.Zero(t, s.Weight())
	_, err = s.Add(2, &fakeSource{weight: 4})
	require.NoError(t, err)
	s.stop()
}

// A removed or stopped subscription sends nothing, and an error of the connection cuts it.
func TestEventsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := &fakeConn{}
		s, work := newEvents(conn)
		removed, stopped := &fakeSource{weight: 1}, &fakeSource{weight: 1}
		a, err := s.Add(1, removed)
		require.NoError(t, err)
		b, err := s.Add(2, stopped)
		require.NoError(t, err)
		s.Begin(a)
		s.Begin(b)
		s.Remove(1)
		removed.add("event")
		synctest.Wait()
		require.Empty(t, conn.sent)
		conn.err = errors.New("broken")
		stopped.add("event")
		synctest.Wait()
		require.Equal(t, 1, conn.cut)
		s.stop()
		stopped.add("event")
		synctest.Wait()
		work.Wait()
		require.Empty(t, conn.sent)
		require.Equal(t, []int{1, 1}, []int{removed.closed, stopped.closed})
	})
}

package client

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// linked returns a connection to an owner that sends only its hello.
func linked(t *testing.T, limits wire.Limits) (*Conn, *wire.Conn) {
	t.Helper()
	near, far, err := wire.Pipe(limits)
	require.NoError(t, err)
	t.Cleanup(func() { far.Close() })
	var greeting sync.WaitGroup
	greeting.Go(func() { message.ServerHandshake(far, message.Hello{Server: "one"}, nil) })
	conn, err := handshake(context.Background(), near, message.Hello{})
	require.NoError(t, err)
	greeting.Wait()
	go conn.read()
	t.Cleanup(conn.cut)
	return conn, far
}

func TestUnsentRequestReleased(t *testing.T) {
	drivertest.Leaks(t)
	conn, _ := linked(t, wire.Limits{Frame: 1 << 20})
	large := Request{Op: message.OpWatch, Body: message.Watch{Names: []string{string(make([]byte, 2<<20))}}, Event: func(message.Event) {}}
	_, _, err := conn.RoundTrip(context.Background(), large)
	require.ErrorIs(t, err, wire.ErrTooLarge)
	_, err = conn.start(context.Background(), large, func(wire.Frame, error) { t.Error("it was not sent") })
	require.ErrorIs(t, err, wire.ErrTooLarge)
	full := Request{Op: message.OpInfo, Body: message.Info{Name: string(make([]byte, 1000<<10))}, Event: func(message.Event) {}}
	ctx, cancel := context.WithCancel(context.Background())
	var last error
	cancel()
	for last == nil { // the owner does not read, so the first frame is sent in part
		_, last = conn.start(ctx, full, func(frame wire.Frame, _ error) { frame.Files.Close() })
	}
	require.ErrorIs(t, last, context.Canceled)
	conn.mu.Lock()
	defer conn.mu.Unlock()
	require.LessOrEqual(t, len(conn.pending), 1)
	require.Len(t, conn.events, len(conn.pending))
}

// closing is a connection that records the connection's Reason when it is closed.
type closing struct {
	inproc.Conn
	conn   *Conn
	reason error
}

func (c *closing) Close() error {
	c.reason = c.conn.reason()
	return c.Conn.Close()
}

// A request that is being sent when the connection is closed gets the reason, because the reason is set first.
func TestReasonSetBeforeClose(t *testing.T) {
	near, _ := inproc.New(wire.Limits{}, wire.Limits{})
	c := &closing{Conn: near}
	c.conn = newConn(c, message.Hello{})
	c.conn.fail(wire.ErrProtocol)
	require.ErrorIs(t, c.reason, wire.ErrProtocol)
}

// An answer that arrives together with the end of the context wins: the watch succeeds and its events continue.
func TestAnswerBeforeAbandonKeepsEvents(t *testing.T) {
	near, _ := inproc.New(wire.Limits{}, wire.Limits{})
	conn := newConn(near, message.Hello{})
	events := 0
	watch := Request{Op: message.OpWatch, Item: func(wire.Frame) error { events++; return nil }}
	id, w, err := conn.expect(&watch)
	require.NoError(t, err)
	require.NoError(t, conn.dispatch(wire.Frame{Kind: wire.KindResponse, ID: id}))
	require.False(t, conn.abandon(id, w), "the answer is there")
	require.NoError(t, conn.dispatch(wire.Frame{Kind: wire.KindEvent, ID: id}))
	require.Equal(t, 1, events)

	id, w, err = conn.expect(&watch)
	require.NoError(t, err)
	require.True(t, conn.abandon(id, w))
	require.NoError(t, conn.dispatch(wire.Frame{Kind: wire.KindEvent, ID: id}))
	require.Equal(t, 1, events, "an abandoned request gets no events")
}

func TestInvalidEventNameEndsConnection(t *testing.T) {
	drivertest.Leaks(t)
	conn, far := linked(t, wire.Limits{})
	_, err := conn.start(context.Background(), Request{Op: message.OpWatch, Event: func(message.Event) { t.Error("taken") }},
		func(frame wire.Frame, _ error) { frame.Files.Close() })
	require.NoError(t, err)
	body, err := message.Marshal(message.Event{Kind: message.EventPublished, Name: strings.Repeat("n", 256), Version: 1})
	require.NoError(t, err)
	require.NoError(t, far.Send(wire.KindEvent, 1, body))
	<-conn.Done
	require.ErrorIs(t, conn.err, status.ErrProtocol)
}

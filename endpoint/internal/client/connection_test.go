package client

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
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
	_, err = conn.start(context.Background(), large, func(wire.Frame, error) error { t.Error("it was not sent"); return nil })
	require.ErrorIs(t, err, wire.ErrTooLarge)
	full := Request{Op: message.OpInfo, Body: message.Info{Name: string(make([]byte, 1000<<10))}, Event: func(message.Event) {}}
	ctx, cancel := context.WithCancel(context.Background())
	var last error
	cancel()
	for last == nil { // the owner does not read, so the first frame is sent in part
		_, last = conn.start(ctx, full, closeFrame)
	}
	require.ErrorIs(t, last, context.Canceled)
	conn.mu.Lock()
	defer conn.mu.Unlock()
	require.LessOrEqual(t, len(conn.pending), 1)
	require.Len(t, conn.events, len(conn.pending))
}

// closing is a connection that records the connection's Reason when it is closed.
type closing struct {
	transport.Conn
	conn   *Conn
	reason error
}

func (c *closing) Close() error {
	c.reason = c.conn.reason()
	return c.Conn.Close()
}

// A request that is being sent when the connection is closed gets the reason, because the reason is set first.
func TestReasonSetBeforeClose(t *testing.T) {
	t.Parallel()
	near, _ := transport.NewPipe(wire.Limits{}, wire.Limits{})
	c := &closing{Conn: near}
	c.conn = newConn(c, message.Hello{})
	c.conn.fail(wire.ErrProtocol)
	require.ErrorIs(t, c.reason, wire.ErrProtocol)
}

// An answer that arrives together with the end of the context wins: the watch succeeds and its events continue.
func TestAnswerBeforeAbandonKeepsEvents(t *testing.T) {
	t.Parallel()
	near, _ := transport.NewPipe(wire.Limits{}, wire.Limits{})
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
		closeFrame)
	require.NoError(t, err)
	body, err := message.Marshal(message.Event{Kind: message.EventPublished, Name: strings.Repeat("n", 256), Version: 1})
	require.NoError(t, err)
	require.NoError(t, far.Send(wire.KindEvent, 1, body))
	<-conn.Done
	require.ErrorIs(t, conn.err, status.ErrProtocol)
}

// After a goodbye the owner answers the requests in flight. The connection refuses new requests, and ends with the last
// answer.
func TestConnOwnerLeaves(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	answered := make(chan error, 1)
	go func() { _, _, err := w.conn.RoundTrip(t.Context(), Request{Op: message.OpPing}); answered <- err }()
	id := w.NextRequest(message.OpPing, nil)
	require.NoError(t, w.Send(wire.KindGoodbye, 0, nil))
	within(t, "the goodbye", w.conn.over)
	require.True(t, w.conn.ownerLeft())
	_, _, err := w.conn.RoundTrip(t.Context(), Request{Op: message.OpPing})
	require.ErrorIs(t, err, status.ErrUnavailable)
	require.True(t, NotSent(err))
	open(t, "a request is in flight", w.conn.Done)
	w.SendFrame(wire.KindResponse, id, message.Pong{})
	require.NoError(t, <-answered)
	within(t, "the end of the connection", w.conn.Done)
}

// Each violation of the protocol ends the connection. An error without a request is the owner's reason.
func TestConnInvalidFrames(t *testing.T) {
	drivertest.Leaks(t)
	for name, frame := range map[string]wire.Frame{
		"answer to no request": {Kind: wire.KindResponse, ID: 7},
		"request":              {Kind: wire.KindRequest, ID: 1},
		"cancellation":         {Kind: wire.KindCancel, ID: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := acceptedOwner(t)
			waits := make(chan error, 1)
			go func() { _, _, err := w.conn.RoundTrip(context.Background(), Request{Op: message.OpPing}); waits <- err }()
			w.NextRequest(message.OpPing, nil)
			require.NoError(t, w.Send(frame.Kind, frame.ID, frame.Body))
			require.ErrorIs(t, <-waits, status.ErrProtocol)
			require.ErrorIs(t, w.conn.reason(), status.ErrProtocol)
		})
	}
	t.Run("reason", func(t *testing.T) {
		w := acceptedOwner(t)
		w.SendFrame(wire.KindError, 0, message.Error{Code: message.CodeResourceExhausted, Message: "too many clients"})
		within(t, "the end of the connection", w.conn.Done)
		require.ErrorContains(t, w.conn.reason(), "too many clients")
	})
}

// Releases and cancellations never block. If the owner does not read them, the connection is closed.
func TestConnQueueLimited(t *testing.T) {
	drivertest.Leaks(t)
	w := acceptedOwner(t)
	for range maxQueued / queuedFrameBytes {
		w.conn.releaseObject("object", 1)
		if w.conn.reason() != nil {
			break
		}
	}
	within(t, "the end of the connection", w.conn.Done)
	require.ErrorIs(t, w.conn.reason(), status.ErrUnavailable)
}

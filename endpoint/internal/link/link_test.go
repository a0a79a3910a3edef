package link

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

// linked returns a link to an owner that sends only its hello.
func linked(t *testing.T, limits wire.Limits) (*Link, *wire.Conn) {
	t.Helper()
	near, far, err := wire.Pipe(limits)
	require.NoError(t, err)
	t.Cleanup(func() { far.Close() })
	var greeting sync.WaitGroup
	greeting.Go(func() { message.ServerHandshake(far, message.Hello{Server: "one"}, nil) })
	l, err := Handshake(context.Background(), near, message.Hello{})
	require.NoError(t, err)
	greeting.Wait()
	go l.Read()
	t.Cleanup(l.Cut)
	return l, far
}

func TestUnsentRequestReleased(t *testing.T) {
	drivertest.Leaks(t)
	l, _ := linked(t, wire.Limits{Frame: 1 << 20})
	large := Request{Op: message.OpWatch, Body: message.Watch{Names: []string{string(make([]byte, 2<<20))}}, Event: func(message.Event) {}}
	_, _, err := l.RoundTrip(context.Background(), large)
	require.ErrorIs(t, err, wire.ErrTooLarge)
	_, err = l.Start(context.Background(), large, func(wire.Frame, error) { t.Error("it was not sent") })
	require.ErrorIs(t, err, wire.ErrTooLarge)
	full := Request{Op: message.OpInfo, Body: message.Info{Name: string(make([]byte, 1000<<10))}, Event: func(message.Event) {}}
	ctx, cancel := context.WithCancel(context.Background())
	var last error
	cancel()
	for last == nil { // the owner does not read, so the first frame is sent in part
		_, last = l.Start(ctx, full, func(frame wire.Frame, _ error) { frame.Files.Close() })
	}
	require.ErrorIs(t, last, context.Canceled)
	l.mu.Lock()
	defer l.mu.Unlock()
	require.LessOrEqual(t, len(l.pending), 1)
	require.Len(t, l.events, len(l.pending))
}

// closing is a connection that records the link's Reason when it is closed.
type closing struct {
	inproc.Conn
	link   *Link
	reason error
}

func (c *closing) Close() error {
	c.reason = c.link.Reason()
	return c.Conn.Close()
}

// A request that is being sent when the connection is closed gets the reason, because the reason is set first.
func TestReasonSetBeforeClose(t *testing.T) {
	near, _ := inproc.New(wire.Limits{}, wire.Limits{})
	c := &closing{Conn: near}
	c.link = makeLink(c, message.Hello{})
	c.link.fail(wire.ErrProtocol)
	require.ErrorIs(t, c.reason, wire.ErrProtocol)
}

// An answer that arrives together with the end of the context wins: the watch succeeds and its events continue.
func TestAnswerBeforeAbandonKeepsEvents(t *testing.T) {
	near, _ := inproc.New(wire.Limits{}, wire.Limits{})
	l := makeLink(near, message.Hello{})
	events := 0
	watch := Request{Op: message.OpWatch, Item: func(wire.Frame) error { events++; return nil }}
	id, w, err := l.expect(&watch)
	require.NoError(t, err)
	require.NoError(t, l.dispatch(wire.Frame{Kind: wire.KindResponse, ID: id}))
	require.False(t, l.abandon(id, w), "the answer is there")
	require.NoError(t, l.dispatch(wire.Frame{Kind: wire.KindEvent, ID: id}))
	require.Equal(t, 1, events)

	id, w, err = l.expect(&watch)
	require.NoError(t, err)
	require.True(t, l.abandon(id, w))
	require.NoError(t, l.dispatch(wire.Frame{Kind: wire.KindEvent, ID: id}))
	require.Equal(t, 1, events, "an abandoned request gets no events")
}

func TestInvalidEventNameEndsConnection(t *testing.T) {
	drivertest.Leaks(t)
	l, far := linked(t, wire.Limits{})
	_, err := l.Start(context.Background(), Request{Op: message.OpWatch, Event: func(message.Event) { t.Error("taken") }},
		func(frame wire.Frame, _ error) { frame.Files.Close() })
	require.NoError(t, err)
	body, err := message.Marshal(message.Event{Kind: message.EventPublished, Name: strings.Repeat("n", 256), Version: 1})
	require.NoError(t, err)
	require.NoError(t, far.Send(wire.KindEvent, 1, body))
	<-l.Done
	require.ErrorIs(t, l.err, status.ErrProtocol)
}

package endpoint

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// linked is a link to an owner that says nothing after its hello.
func linked(t *testing.T, limits wire.Limits) (*link, *wire.Conn) {
	t.Helper()
	near, far, err := wire.Pipe(limits)
	require.NoError(t, err)
	t.Cleanup(func() { far.Close() })
	var greeting sync.WaitGroup
	greeting.Go(func() { message.ServerHandshake(far, message.Hello{Server: "one"}, nil) })
	l, err := newLink(context.Background(), near, message.Hello{})
	require.NoError(t, err)
	greeting.Wait()
	go l.read()
	t.Cleanup(l.cut)
	return l, far
}

func TestARequestThatIsNotSentLeavesNothingBehind(t *testing.T) {
	drivertest.Leaks(t)
	l, _ := linked(t, wire.Limits{Frame: 1 << 20})
	large := call{op: message.OpWatch, body: message.Watch{Names: []string{string(make([]byte, 2<<20))}}, event: func(message.Event) {}}
	_, _, err := l.roundTrip(context.Background(), large)
	require.ErrorIs(t, err, wire.ErrTooLarge)
	_, err = l.start(context.Background(), large, func(wire.Frame, error) { t.Error("it was not sent") })
	require.ErrorIs(t, err, wire.ErrTooLarge)
	full := call{op: message.OpInfo, body: message.Info{Name: string(make([]byte, 1000<<10))}, event: func(message.Event) {}}
	ctx, cancel := context.WithCancel(context.Background())
	var last error
	cancel()
	for last == nil { // the owner does not read: of the first one part is sent
		_, last = l.start(ctx, full, func(frame wire.Frame, _ error) { frame.Files.Close() })
	}
	require.ErrorIs(t, last, context.Canceled)
	l.mu.Lock()
	defer l.mu.Unlock()
	require.LessOrEqual(t, len(l.pending), 1)
	require.Len(t, l.events, len(l.pending))
}

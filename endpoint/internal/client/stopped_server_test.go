package client_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// An owner answers thousands of abandoned calls before it reads again. Their resources are released, and the readers of
// both sides do not wait for each other.
func TestClientLateAnswers(t *testing.T) {
	drivertest.Leaks(t)
	const calls = 3000
	o := fixture.NewFakeOwner(t)
	c, end := o.Connected("one")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var calling sync.WaitGroup
	for range calls {
		calling.Go(func() { c.Call(ctx, "object", 1, nil) })
	}
	ids := make([]uint64, 0, calls)
	for range calls {
		ids = append(ids, end.NextRequest(message.OpCall, nil))
	}
	cancel()
	calling.Wait()
	start := time.Now()
	for _, id := range ids {
		end.SendFrame(wire.KindResponse, id, returned("object", "one"))
	}
	require.Less(t, time.Since(start), fixture.WaitLimit)
	cancelled, released := 0, 0
	for cancelled+released < 2*calls {
		frame := end.NextFrame()
		if frame.Kind == wire.KindCancel {
			cancelled++
			continue
		}
		request, err := message.ParseRequest(frame.Body)
		require.NoError(t, err)
		require.Equal(t, message.OpObjectRelease, request.Op)
		released++
	}
	require.Equal(t, calls, released)
	pings(t, c, end)
}

// The owner is stopped and the socket is full, but a call still ends on time. When the owner continues, so does the
// connection.
func TestClientCallStoppedServer(t *testing.T) {
	drivertest.Leaks(t)
	o := fixture.NewFakeOwner(t)
	c, end := o.Connected("one")
	start := time.Now()
	for range 8 {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		require.ErrorIs(t, c.Call(ctx, "bytes", make([]byte, 256<<10), nil), context.DeadlineExceeded)
		cancel()
	}
	for range 8 {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		require.ErrorIs(t, c.Call(ctx, "small", 1, nil), context.DeadlineExceeded)
		cancel()
	}
	require.Less(t, time.Since(start), fixture.WaitLimit)

	pinged := make(chan error, 1)
	go func() { _, err := c.Ping(context.Background()); pinged <- err }()
	asked := map[uint64]bool{}
	for {
		frame := end.NextFrame()
		if frame.Kind == wire.KindCancel {
			require.True(t, asked[frame.ID], "a request comes before the word to stop it")
			delete(asked, frame.ID)
			continue
		}
		request, err := message.ParseRequest(frame.Body)
		require.NoError(t, err)
		if request.Op == message.OpPing {
			end.SendFrame(wire.KindResponse, frame.ID, message.Pong{})
			break
		}
		asked[frame.ID] = true
		end.SendFrame(wire.KindResponse, frame.ID, message.Returned{})
	}
	require.NoError(t, <-pinged)
}

func TestClientCloseStoppedServer(t *testing.T) {
	drivertest.Leaks(t)
	o := fixture.NewFakeOwner(t)
	c, _ := o.Connected("one")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Call(ctx, "bytes", make([]byte, 4<<20), nil), context.DeadlineExceeded)
	start := time.Now()
	require.NoError(t, c.Close())
	require.Less(t, time.Since(start), fixture.WaitLimit)
}

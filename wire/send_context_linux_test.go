package wire

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fill sends frames until the socket is full, with a context that has ended, and returns how many were sent.
func fill(t *testing.T, c *Conn) (sent uint64) {
	t.Helper()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for {
		err := c.SendContext(ended, KindRequest, sent+1, item(4<<10))
		if err == nil {
			sent++
			require.Less(t, sent, uint64(1<<20))
			continue
		}
		require.ErrorIs(t, err, ErrNotSent)
		require.ErrorIs(t, err, context.Canceled)
		return sent
	}
}

// drain receives frames of that body.
func drain(t *testing.T, c *Conn, from, to uint64, body []byte) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	for id := from; id <= to; id++ {
		f, err := c.Receive()
		require.NoError(t, err)
		require.Equal(t, id, f.ID)
		require.True(t, bytes.Equal(body, f.Body))
		f.Files.Close()
	}
}

func TestASendEndsWithItsContext(t *testing.T) {
	requireSameDescriptors(t)
	a, b := pipe(t, Limits{})
	sent := fill(t, a)
	require.Positive(t, sent)

	ctx, cancel := context.WithCancelCause(context.Background())
	mine := errors.New("mine")
	waiting := make(chan error, 3)
	big, file := item(1<<20), memfds(t, 1)[0]
	go func() { waiting <- a.SendContext(ctx, KindRequest, 1<<20, item(4<<10)) }()
	go func() { waiting <- a.SendContext(ctx, KindRequest, 1<<20, big) }()
	go func() { waiting <- a.SendContext(ctx, KindRequest, 1<<20, item(10), file) }()
	time.AfterFunc(10*time.Millisecond, func() { cancel(mine) })
	for range cap(waiting) {
		err := <-waiting
		require.ErrorIs(t, err, ErrNotSent)
		require.ErrorIs(t, err, mine)
	}
	// Nothing of those three arrives, everything else does, and the connection goes on.
	drain(t, b, 1, sent, item(4<<10))
	require.NoError(t, a.Send(KindRequest, sent+1, item(4<<10)))
	drain(t, b, sent+1, sent+1, item(4<<10))
}

func TestAFrameThatHasBegunIsSentWithoutItsSender(t *testing.T) {
	requireSameDescriptors(t)
	a, b := pipe(t, Limits{})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	body, want := item(4<<20), item(4<<20)
	file := memfds(t, 1)[0]
	require.NoError(t, a.SendContext(ctx, KindRequest, 1, body, file))
	clear(body) // it is the caller's again
	require.NoError(t, file.Close())
	require.NoError(t, a.SendContext(ctx, KindRequest, 2, item(100)), "it waits behind the other, in a queue")
	drain(t, b, 1, 1, want)
	drain(t, b, 2, 2, item(100))
	require.NoError(t, a.Send(KindRequest, 3, item(9<<10)))
	drain(t, b, 3, 3, item(9<<10))
}

func TestWhatIsLeftToAGoroutineIsBounded(t *testing.T) {
	requireSameDescriptors(t)
	a, _ := pipe(t, Limits{WriteTimeout: 50 * time.Millisecond})
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	require.NoError(t, a.SendContext(ctx, KindRequest, 1, item(4<<20)))
	_, err := a.Receive()
	require.ErrorIs(t, err, net.ErrClosed, "the peer has not read for too long")
	require.Error(t, a.Send(KindRequest, 2, item(1)))
}

package wire

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fill sends frames with an ended context until the socket is full, and returns their number.
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

// drain receives frames with the given body.
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
	// None of those three arrives, everything else does, and the connection remains usable.
	drain(t, b, 1, sent, item(4<<10))
	require.NoError(t, a.Send(KindRequest, sent+1, item(4<<10)))
	drain(t, b, sent+1, sent+1, item(4<<10))
}

// Frames queued behind one that is not sent are still written, although their senders have returned.
func TestFramesQueuedBehindOneThatIsNotSent(t *testing.T) {
	a, b := pipe(t, Limits{})
	sent := fillBySystemCalls(t, a)
	ctx, cancel := context.WithCancel(context.Background())
	waiting := make(chan error)
	go func() { waiting <- a.SendContext(ctx, KindRequest, 1<<20, item(1<<20)) }()
	require.Eventually(t, func() bool {
		a.writer.mu.Lock()
		defer a.writer.mu.Unlock()
		return a.writer.writing
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, a.Send(KindRequest, sent+1, item(100)), "it waits behind the other, in a queue")
	cancel()
	require.ErrorIs(t, <-waiting, ErrNotSent)
	drain(t, b, 1, sent+1, item(100))
}

// fillBySystemCalls fills the socket without the connection, so that no goroutine of it writes, and returns the number
// of frames sent.
func fillBySystemCalls(t *testing.T, c *Conn) (sent uint64) {
	t.Helper()
	body := item(100)
	require.NoError(t, c.writer.sink.raw.Control(func(fd uintptr) {
		for {
			frame := make([]byte, HeaderBytes, HeaderBytes+len(body))
			header{length: uint32(len(body)), kind: KindRequest, id: sent + 1}.put(frame)
			n, err := unix.SendmsgN(int(fd), append(frame, body...), nil, nil, unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				return
			}
			require.NoError(t, err)
			require.Equal(t, HeaderBytes+len(body), n, "a message of less than a page is taken whole")
			sent++
		}
	}))
	return sent
}

func TestAFrameThatHasBegunIsSentWithoutItsSender(t *testing.T) {
	requireSameDescriptors(t)
	a, b := pipe(t, Limits{})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	body, want := item(4<<20), item(4<<20)
	file := memfds(t, 1)[0]
	require.NoError(t, a.SendContext(ctx, KindRequest, 1, body, file))
	clear(body) // the caller owns it again
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

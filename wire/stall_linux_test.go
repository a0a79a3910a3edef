package wire

import (
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAFrameThatDoesNotGoOnEndsTheReading(t *testing.T) {
	whole := func(body int) []byte {
		b := make([]byte, HeaderBytes, HeaderBytes+body)
		header{length: uint32(body), kind: KindRequest, id: 7}.put(b)
		return append(b, item(body)...)
	}
	small, large := whole(64), whole(1<<20)
	for _, c := range []struct {
		name string
		sent []byte
	}{
		{"half a header", small[:6]},
		{"a header", small[:HeaderBytes]},
		{"half a body", small[:40]},
		{"half a large body", large[:1<<19]},
		{"a frame and half of another", append(whole(64), small[:40]...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			requireSameDescriptors(t)
			conn, raw := rawPair(t, Limits{FrameTimeout: 50 * time.Millisecond})
			var sender sync.WaitGroup
			sender.Go(func() { raw.Write(c.sent) })
			_, err := conn.Receive()
			if err == nil {
				_, err = conn.Receive()
			}
			require.ErrorIs(t, err, ErrTimeout)
			_, again := conn.Receive()
			require.Equal(t, err, again, "it is final")
			require.NoError(t, conn.Send(KindError, 0, item(10)), "the peer can still be told")
			sender.Wait()
		})
	}
	t.Run("descriptors ahead of a frame that does not come", func(t *testing.T) {
		requireSameDescriptors(t)
		conn, raw := rawPair(t, Limits{FrameTimeout: 50 * time.Millisecond})
		b := make([]byte, HeaderBytes)
		header{kind: KindFiles, files: 2, id: 7}.put(b)
		sendRaw(t, raw, b, memfds(t, 2)...)
		_, err := conn.Receive()
		require.ErrorIs(t, err, ErrTimeout)
	})
}

// A peer that sends a byte now and then holds its descriptors no longer than the limit.
func TestFrameThatDripsIsCutOff(t *testing.T) {
	requireSameDescriptors(t)
	conn, raw := rawPair(t, Limits{FrameTimeout: 200 * time.Millisecond})
	head := make([]byte, HeaderBytes)
	header{kind: KindFiles, files: 2, id: 7}.put(head)
	sendRaw(t, raw, head, memfds(t, 2)...)
	var sender sync.WaitGroup
	sender.Go(func() {
		header{length: 1 << 20, kind: KindRequest, id: 7}.put(head)
		raw.Write(head)
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			if _, err := raw.Write([]byte{0}); err != nil {
				return
			}
		}
	})
	start := time.Now()
	_, err := conn.Receive()
	require.ErrorIs(t, err, ErrTimeout)
	require.Less(t, time.Since(start), 5*time.Second)
	conn.Close()
	sender.Wait()
}

func TestFrameMayPauseWithinItsTime(t *testing.T) {
	conn, raw := rawPair(t, Limits{FrameTimeout: 20 * time.Second})
	b := make([]byte, HeaderBytes)
	header{length: 64, kind: KindRequest, id: 7}.put(b)
	b = append(b, item(64)...)
	var sender sync.WaitGroup
	sender.Go(func() {
		for i := 0; i < len(b); i += 8 {
			time.Sleep(10 * time.Millisecond)
			raw.Write(b[i : i+8])
		}
	})
	f, err := conn.Receive()
	require.NoError(t, err)
	require.EqualValues(t, 7, f.ID)
	sender.Wait()
	// There is no limit between frames, and a deadline remains an interruption.
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	_, err = conn.Receive()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NotErrorIs(t, err, ErrTimeout)
	raw.Close()
	require.NoError(t, conn.SetReadDeadline(time.Time{}))
	_, err = conn.Receive()
	require.ErrorIs(t, err, io.EOF)
}

package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRoundTrip(t *testing.T) {
	requireSameDescriptors(t)
	for _, size := range []int{1, 9, 48, copyBytes, copyBytes + 1, bufferBytes - HeaderBytes, bufferBytes - HeaderBytes + 1,
		firstBody, firstBody + 1, 5 << 20} {
		for _, files := range []int{0, 1, 3} {
			t.Run(name("%d bytes %d files", size, files), func(t *testing.T) {
				a, b := pipe(t, Limits{})
				body, fds := item(size), memfds(t, files)
				var sender sync.WaitGroup
				sender.Go(func() {
					for id := range uint64(3) {
						if err := a.Send(KindRequest, id, body, fds...); err != nil {
							t.Error(err)
						}
					}
				})
				for id := range uint64(3) {
					f, err := b.Receive()
					require.NoError(t, err)
					require.Equal(t, KindRequest, f.Kind)
					require.Equal(t, id, f.ID)
					require.True(t, bytes.Equal(body, f.Body))
					requireMemfds(t, f.Files, files)
				}
				sender.Wait()
				require.NoError(t, a.Close())
				_, err := b.Receive()
				require.ErrorIs(t, err, io.EOF)
				require.NotErrorIs(t, err, io.ErrUnexpectedEOF)
			})
		}
	}
}

func TestNilBodyIsEmptyMap(t *testing.T) {
	a, b := pipe(t, Limits{})
	require.NoError(t, a.Send(KindGoodbye, 0, nil))
	f, err := b.Receive()
	require.NoError(t, err)
	require.Equal(t, []byte{0xa0}, f.Body)
}

func TestManyDescriptors(t *testing.T) {
	requireSameDescriptors(t)
	for _, n := range []int{252, 253, 254, 506, 507, 1000} {
		t.Run(name("%d", n), func(t *testing.T) {
			a, b := pipe(t, Limits{})
			fds := memfds(t, n)
			var sender sync.WaitGroup
			sender.Go(func() {
				if err := a.Send(KindResponse, 9, item(100), fds...); err != nil {
					t.Error(err)
				}
				if err := a.Send(KindResponse, 10, item(10)); err != nil {
					t.Error(err)
				}
			})
			f, err := b.Receive()
			require.NoError(t, err)
			require.Equal(t, uint64(9), f.ID)
			requireMemfds(t, f.Files, n)
			f, err = b.Receive()
			require.NoError(t, err)
			require.Nil(t, f.Files)
			sender.Wait()
		})
	}
}

func TestSendRefusesWhatIsBeyondTheLimits(t *testing.T) {
	requireSameDescriptors(t)
	a, b := pipe(t, Limits{Frame: 100, Files: 2})
	require.ErrorIs(t, a.Send(KindRequest, 1, item(101)), ErrTooLarge)
	require.ErrorIs(t, a.Send(KindRequest, 1, item(10), memfds(t, 3)...), ErrTooLarge)
	require.ErrorIs(t, a.Send(KindFiles, 1, item(10)), os.ErrInvalid)
	require.ErrorIs(t, a.Send(9, 1, item(10)), os.ErrInvalid)
	require.ErrorIs(t, a.Send(KindRequest, 1, []byte{}), os.ErrInvalid)
	closed := memfds(t, 1)
	closed[0].Close()
	require.ErrorIs(t, a.Send(KindRequest, 1, item(10), closed...), os.ErrClosed)

	require.NoError(t, a.Send(KindRequest, 2, item(100)), "the connection goes on")
	f, err := b.Receive()
	require.NoError(t, err)
	require.Equal(t, uint64(2), f.ID)
}

func TestConcurrentSenders(t *testing.T) {
	requireSameDescriptors(t)
	a, b := pipe(t, Limits{})
	const senders, each = 16, 60
	fds := memfds(t, 2)
	var wg sync.WaitGroup
	for s := range uint64(senders) {
		wg.Go(func() {
			for i := range uint64(each) {
				id := s<<32 | i
				var files []*os.File
				if i%7 == s%7 {
					files = fds
				}
				if err := a.Send(KindRequest, id, item(9+int(id%30)*int(i)*13), files...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	next := [senders]uint64{}
	for range senders * each {
		f, err := b.Receive()
		require.NoError(t, err)
		s, i := f.ID>>32, f.ID&0xffffffff
		require.Equal(t, next[s], i, "frames of one sender stay in order")
		next[s]++
		require.True(t, bytes.Equal(item(9+int(f.ID%30)*int(i)*13), f.Body))
		if i%7 == s%7 {
			requireMemfds(t, f.Files, 2)
		} else {
			require.Nil(t, f.Files)
		}
	}
	wg.Wait()
}

func TestSendLater(t *testing.T) {
	t.Run("flush", func(t *testing.T) {
		a, b := pipe(t, Limits{})
		for id := range uint64(3) {
			require.NoError(t, a.SendLater(KindResponse, id, item(10)))
		}
		require.NoError(t, b.SetReadDeadline(time.Now()))
		_, err := b.Receive()
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "nothing was sent yet")
		require.NoError(t, b.SetReadDeadline(time.Time{}))
		require.NoError(t, a.Flush())
		for id := range uint64(3) {
			f, err := b.Receive()
			require.NoError(t, err)
			require.Equal(t, id, f.ID)
		}
	})
	t.Run("receive", func(t *testing.T) {
		a, b := pipe(t, Limits{})
		require.NoError(t, a.SendLater(KindRequest, 1, item(10)))
		var wg sync.WaitGroup
		wg.Go(func() {
			if f, err := b.Receive(); err != nil || b.Send(KindResponse, f.ID, f.Body) != nil {
				t.Error(f, err)
			}
		})
		_, err := a.Receive() // sends the queued request before it waits
		require.NoError(t, err)
		wg.Wait()
	})
	t.Run("send", func(t *testing.T) {
		a, b := pipe(t, Limits{})
		require.NoError(t, a.SendLater(KindResponse, 1, item(10)))
		require.NoError(t, a.Send(KindResponse, 2, item(10)))
		require.NoError(t, a.SendLater(KindResponse, 3, item(10)))
		require.NoError(t, a.Send(KindGoodbye, 0, nil))
		require.NoError(t, a.Close())
		for _, id := range []uint64{1, 2, 3, 0} {
			f, err := b.Receive()
			require.NoError(t, err)
			require.Equal(t, id, f.ID)
		}
	})
	t.Run("more than the queue holds", func(t *testing.T) {
		a, b := pipe(t, Limits{})
		for id := range uint64(10) {
			require.NoError(t, a.SendLater(KindResponse, id, item(copyBytes)))
		}
		for id := range uint64(4) {
			f, err := b.Receive()
			require.NoError(t, err)
			require.Equal(t, id, f.ID)
		}
	})
}

// A peer that does not read loses its own connection after a limited time. Other connections are not affected.
func TestWriteTimeout(t *testing.T) {
	requireSameDescriptors(t)
	deaf, _ := pipe(t, Limits{WriteTimeout: 20 * time.Millisecond})
	good, peer := pipe(t, Limits{WriteTimeout: 20 * time.Millisecond})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				err := deaf.Send(KindEvent, 1, item(1000))
				if err == nil {
					continue
				}
				if !errors.Is(err, ErrTimeout) && !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
				return
			}
		})
	}
	require.NoError(t, good.Send(KindEvent, 1, item(1000)))
	_, err := peer.Receive()
	require.NoError(t, err)
	wg.Wait()
	err = deaf.Send(KindEvent, 1, item(10))
	require.Error(t, err)
	_, err = deaf.Receive()
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, ErrTimeout, os.ErrDeadlineExceeded)
}

func TestWriteTimeoutWithinAFrame(t *testing.T) {
	a, _ := pipe(t, Limits{WriteTimeout: 20 * time.Millisecond})
	require.ErrorIs(t, a.Send(KindEvent, 1, item(8<<20)), ErrTimeout)
}

func TestReceiveAfterThePeerLeft(t *testing.T) {
	a, b := pipe(t, Limits{})
	require.NoError(t, b.Send(KindGoodbye, 0, nil))
	require.NoError(t, b.Close())
	var err error
	for err == nil {
		err = a.Send(KindRequest, 1, item(10))
	}
	require.True(t, peerGone(err), err)
	f, err := a.Receive()
	require.NoError(t, err, "what the peer sent before it left still arrives")
	require.Equal(t, KindGoodbye, f.Kind)
	_, err = a.Receive()
	require.ErrorIs(t, err, io.EOF)
}

func TestCloseWrite(t *testing.T) {
	a, b := pipe(t, Limits{})
	require.NoError(t, a.CloseWrite())
	_, err := b.Receive()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, b.Send(KindResponse, 1, item(10)))
	_, err = a.Receive()
	require.NoError(t, err)
}

func TestClose(t *testing.T) {
	requireSameDescriptors(t)
	waiting, _ := pipe(t, Limits{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := waiting.Receive(); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	require.NoError(t, waiting.Close())
	wg.Wait()

	a, b := pipe(t, Limits{})
	// Two frames arrive in one read. Close also closes the descriptors of the frame that was not received.
	require.NoError(t, a.Send(KindRequest, 1, item(10)))
	require.NoError(t, a.Send(KindRequest, 2, item(10), memfds(t, 3)...))
	f, err := b.Receive()
	require.NoError(t, err)
	require.Equal(t, uint64(1), f.ID)
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	_, err = b.Receive()
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, b.Send(KindRequest, 1, item(10)), net.ErrClosed)
}

// No data is lost when a deadline passes at any place in a frame.
func TestReadDeadline(t *testing.T) {
	requireSameDescriptors(t)
	for _, size := range []int{10, 20_000} {
		c, raw := rawPair(t, Limits{})
		frame := frameBytes(KindRequest, 2, 1, item(size))
		files := memfds(t, 2)
		for _, cut := range []int{0, 1, 14, 1, 1, size / 2} {
			if cut > 0 {
				sendRaw(t, raw, frame[:cut], files...)
				files = nil
			}
			require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
			_, err := c.Receive()
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.False(t, c.Buffered())
			frame = frame[cut:]
		}
		require.NoError(t, c.SetReadDeadline(time.Time{}))
		sendRaw(t, raw, append(frame, frameBytes(KindRequest, 0, 2, item(10))...))
		f, err := c.Receive()
		require.NoError(t, err)
		require.True(t, bytes.Equal(item(size), f.Body))
		requireMemfds(t, f.Files, 2)
		_, err = c.Receive()
		require.NoError(t, err)
		require.False(t, c.Buffered())
	}
}

func TestBuffered(t *testing.T) {
	c, raw := rawPair(t, Limits{})
	require.False(t, c.Buffered())
	one := frameBytes(KindRequest, 0, 1, item(10))
	sendRaw(t, raw, slices.Concat(one, one, one[:20]))
	_, err := c.Receive()
	require.NoError(t, err)
	require.True(t, c.Buffered())
	_, err = c.Receive()
	require.NoError(t, err)
	require.False(t, c.Buffered())
	require.NoError(t, raw.Close())
	_, err = c.Receive()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.True(t, c.Buffered())
}

// A peer that announces a large frame and sends little of it costs the receiver little memory.
func TestLiarCostsLittle(t *testing.T) {
	c, raw := rawPair(t, Limits{})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	h := make([]byte, HeaderBytes)
	header{length: 64 << 20, kind: KindRequest, id: 1}.put(h)
	sendRaw(t, raw, append(h, item(100)...))
	raw.CloseWrite()
	_, err := c.Receive()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(firstBody+128<<10))
}

// A waiting connection holds no buffer.
func TestIdleHoldsNoBuffer(t *testing.T) {
	a, b := pipe(t, Limits{})
	require.NoError(t, a.Send(KindRequest, 1, item(1000)))
	_, err := b.Receive()
	require.NoError(t, err)
	require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, err = b.Receive()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Nil(t, b.reader.src.buf)
	require.Nil(t, a.writer.queue)
}

func TestNewConnRefusesOtherSockets(t *testing.T) {
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: t.TempDir() + "/s", Net: "unixgram"})
	require.NoError(t, err)
	_, err = NewConn(c, Limits{})
	require.ErrorIs(t, err, os.ErrInvalid)
}

// If a peer stops reading but keeps its end open, Receive returns what it sent before and then the end.
func TestAPeerThatStopsReadingIsAtItsEnd(t *testing.T) {
	requireSameDescriptors(t)
	for _, later := range []bool{false, true} {
		a, b := pipe(t, Limits{})
		require.NoError(t, b.Send(KindRequest, 1, body48))
		require.NoError(t, b.conn.CloseRead())
		require.NoError(t, b.Send(KindRequest, 2, body48))
		if later {
			require.NoError(t, a.SendLater(KindResponse, 1, body48))
		} else {
			require.ErrorIs(t, a.Send(KindResponse, 1, body48), syscall.EPIPE)
		}
		for id := range uint64(2) {
			f, err := a.Receive()
			require.NoError(t, err)
			require.Equal(t, id+1, f.ID)
		}
		_, err := a.Receive()
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
}

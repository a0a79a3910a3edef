package wire

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Closing connections while both sides send and receive never accesses unmapped memory.
func TestCloseDuringUse(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 8
	}
	for range rounds {
		t.Run("", func(t *testing.T) {
			server, client := ringPipe(t, Limits{Ring: 4096})
			var work sync.WaitGroup
			for _, c := range []*Conn{server, client} {
				for range 2 {
					work.Go(func() {
						for c.Send(KindRequest, 1, item(200)) == nil {
						}
					})
				}
				work.Go(func() {
					for {
						if _, err := c.Receive(); err != nil {
							return
						}
					}
				})
				work.Go(func() {
					for range 100 {
						c.Buffered()
					}
				})
			}
			time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
			first, second := server, client
			if rand.IntN(2) == 0 {
				first, second = client, server
			}
			require.NoError(t, first.Close())
			require.NoError(t, second.Close())
			work.Wait()
		})
	}
}

// A connection may be closed between sending a frame that moves the stream to the ring and recording that.
func TestClosedWriterStaysOutOfItsRing(t *testing.T) {
	server, _ := ringPipe(t, Limits{Ring: 4096})
	w := &server.writer
	w.mu.Lock()
	w.recordMoveLocked(true)
	require.True(t, w.ring.on)
	w.mu.Unlock()
	w.close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recordMoveLocked(true)
	require.False(t, w.ring.on)
	done, err := w.putLocked(item(10), nil)
	require.NoError(t, err)
	require.False(t, done)
}

func init() {
	// answers each frame, by a ring
	roles["ring mirror"] = func(u *net.UnixConn) error {
		c, err := NewConn(u, Limits{})
		if err != nil {
			return err
		}
		c.allowRing(false)
		for {
			f, err := c.Receive()
			if err != nil {
				return nil
			}
			if err := c.Send(KindResponse, f.ID, f.Body); err != nil {
				return nil // it is killed, or its peer is
			}
		}
	}
}

// The other process is killed repeatedly at random moments. Received frames are whole and in order, the end follows,
// and nothing is left behind.
func TestPeerOfARingIsKilled(t *testing.T) {
	requireRings(t)
	requireNoRings(t)
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	for range rounds {
		u, cmd := startRole(t, "ring mirror")
		c, err := NewConn(u, Limits{})
		require.NoError(t, err)
		c.allowRing(true)
		for n := range uint64(200) {
			require.NoError(t, c.Send(KindRequest, n, item(50)))
			f, err := c.Receive()
			require.NoError(t, err)
			require.Equal(t, n, f.ID)
		}
		require.True(t, onRing(c))
		var sender sync.WaitGroup
		sender.Go(func() {
			for n := uint64(200); c.Send(KindRequest, n, item(50)) == nil; n++ {
			}
		})
		kill := time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, func() { cmd.Process.Kill() })
		next := uint64(200)
		for {
			f, err := c.Receive()
			if err != nil {
				require.True(t, errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET), err.Error())
				break
			}
			require.Equal(t, next, f.ID)
			require.Equal(t, item(50), f.Body)
			next++
		}
		kill.Stop()
		require.NoError(t, c.Close())
		sender.Wait()
	}
}

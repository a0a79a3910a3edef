package wire

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// faultySocket replaces the system call of a connection. The peer dies after it was sent left bytes. Descriptors are
// refused while refuse returns true. At most step bytes are accepted at a time.
type faultySocket struct {
	mu     sync.Mutex
	left   int
	refuse func() bool
	step   func() int
	before func() // runs before the first call
}

func (f *faultySocket) call(fd int, out, tail, control []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.before != nil {
		f.before()
		f.before = nil
	}
	if control != nil && f.refuse != nil && f.refuse() {
		return 0, unix.ETOOMANYREFS
	}
	n := min(len(out)+len(tail), f.left)
	switch {
	case len(out)+len(tail) <= HeaderBytes: // the kernel sends so few bytes whole or not at all
		if f.left < HeaderBytes {
			n = 0
		}
	case f.step != nil:
		n = min(n, f.step())
	}
	if n == 0 {
		return 0, unix.EPIPE
	}
	k := min(n, len(out))
	n, err := sendmsg(fd, out[:k], tail[:n-k], control)
	f.left -= max(n, 0)
	return n, err
}

// received counts the frames of each id until the connection ends.
func received(c *Conn) map[uint64]int {
	got := map[uint64]int{}
	for {
		frame, err := c.Receive()
		if err != nil {
			return got
		}
		frame.Files.Close()
		got[frame.ID]++
	}
}

// requireOutcome checks one send: a frame whose send failed never arrives, and a frame is lost after a successful send
// only if the connection ends.
func requireOutcome(t *testing.T, name string, id uint64, err error, arrived int, broken bool) {
	t.Helper()
	switch {
	case err != nil:
		require.Zerof(t, arrived, "%s: frame %d arrived, but its sender got: %v", name, id, err)
	case !broken:
		require.Equalf(t, 1, arrived, "%s: frame %d was sent, and the connection did not end", name, id)
	default:
		require.LessOrEqualf(t, arrived, 1, "%s: frame %d", name, id)
	}
}

// Each sender learns the outcome of its own frame, whichever byte is the last one that the peer receives.
func TestSendersLearnTheOutcomeOfTheirOwnFrames(t *testing.T) {
	requireSameDescriptors(t)
	files := memfds(t, 1)
	frames := map[string]func(c *Conn, id uint64) error{
		"small":       func(c *Conn, id uint64) error { return c.Send(KindRequest, id, item(10)) },
		"large":       func(c *Conn, id uint64) error { return c.Send(KindRequest, id, item(copyBytes+1)) },
		"two parts":   func(c *Conn, id uint64) error { return c.SendShared(KindRequest, id, item(10)[:4], item(10)[4:]) },
		"with a file": func(c *Conn, id uint64) error { return c.Send(KindRequest, id, item(10), files...) },
		"later, flushed": func(c *Conn, id uint64) error {
			err := c.SendLater(KindRequest, id, item(10))
			_ = c.Flush()
			return err
		},
	}
	for first, sendFirst := range frames {
		for second, sendSecond := range frames {
			size := HeaderBytes + 10
			if first == "large" {
				size += copyBytes + 1 - 10
			}
			for left := range 5 * HeaderBytes {
				if left += size - HeaderBytes - 3; first == "large" && left%3 > 0 {
					continue // each byte of the small ones is enough
				}
				oneByOne(t, fmt.Sprintf("%s, %s, %d bytes", first, second, left), left, sendFirst, sendSecond)
			}
		}
	}
}

// oneByOne sends a frame, and three others while it is being written, to a peer that receives left bytes.
func oneByOne(t *testing.T, name string, left int, first, second func(*Conn, uint64) error) {
	a, b := pipe(t, Limits{})
	inCall, proceed := make(chan struct{}), make(chan struct{})
	socket := &faultySocket{left: left, before: func() { close(inCall); <-proceed }}
	a.writer.sink.call = socket.call
	arrived := make(chan map[uint64]int, 1)
	go func() { arrived <- received(b) }()
	var errs [5]error
	var senders sync.WaitGroup
	senders.Go(func() { errs[1] = first(a, 1) })
	<-inCall
	errs[2] = a.Send(KindRequest, 2, item(10)) // queued
	senders.Go(func() { errs[3] = second(a, 3) })
	errs[4] = a.Send(KindRequest, 4, item(10))
	close(proceed)
	senders.Wait()
	_, err := a.Receive()
	require.Error(t, err, "the connection ends: "+name)
	a.Close()
	got := <-arrived
	b.Close()
	for id := uint64(1); id < 5; id++ {
		requireOutcome(t, name, id, errs[id], got[id], true)
	}
}

// TestSendersLearnTheirOutcomeUnderFaults interleaves senders of all kinds of frames with refused descriptors, short
// writes, and the death of the peer, with and without a ring.
func TestSendersLearnTheirOutcomeUnderFaults(t *testing.T) {
	for _, rings := range []bool{false, true} {
		t.Run(fmt.Sprintf("rings %v", rings), func(t *testing.T) {
			for seed := range uint64(60) {
				underFaults(t, seed, rings)
			}
		})
	}
}

func underFaults(t *testing.T, seed uint64, rings bool) {
	r := rand.New(rand.NewPCG(seed, 1))
	a, b := pipe(t, Limits{})
	if rings {
		a, b = ringPipe(t, Limits{})
	}
	const senders, each = 4, 25
	dies := r.IntN(2) == 0
	socket := &faultySocket{left: 1 << 40}
	if dies {
		socket.left = r.IntN(20 << 10)
	}
	refuses, shorts := r.IntN(4), r.IntN(2) == 0
	socket.refuse = func() bool { return refuses > 0 && r.IntN(4) < refuses } // under the lock of the socket
	socket.step = func() int {
		time.Sleep(time.Duration(r.IntN(20)) * time.Microsecond) // other senders queue meanwhile
		if shorts && r.IntN(3) == 0 {
			return 1 + r.IntN(40)
		}
		return 1 << 30
	}
	a.writer.mu.Lock()
	a.writer.sink.call = socket.call
	a.writer.mu.Unlock()
	arrived := make(chan map[uint64]int, 1)
	go func() { arrived <- received(b) }()
	files := memfds(t, 1)
	var errs [senders][each]error
	var working sync.WaitGroup
	for s := range senders {
		own := rand.New(rand.NewPCG(seed, uint64(2+s)))
		working.Go(func() {
			for i := range each {
				id := uint64(100 + s*each + i)
				switch own.IntN(6) {
				case 0:
					errs[s][i] = a.Send(KindRequest, id, item(20), files...)
				case 1:
					errs[s][i] = a.Send(KindRequest, id, item(copyBytes+100))
				case 2:
					errs[s][i] = a.SendLater(KindRequest, id, item(30))
				default:
					errs[s][i] = a.Send(KindRequest, id, item(20))
				}
			}
		})
	}
	working.Wait()
	_ = a.Flush()
	a.writer.mu.Lock()
	for a.writer.writing { // a goroutine writes for senders that have returned
		a.writer.free.Wait()
	}
	broken := a.writer.broken != nil
	a.writer.mu.Unlock()
	if !broken {
		require.NoError(t, a.CloseWrite()) // the peer then has everything
	} else {
		a.Close()
	}
	require.False(t, broken && !dies, "refused descriptors do not end the connection")
	var got map[uint64]int
	select {
	case got = <-arrived:
	case <-time.After(20 * time.Second):
		t.Fatal("the peer was not woken")
	}
	a.Close()
	b.Close()
	for s := range senders {
		for i, err := range errs[s] {
			id := uint64(100 + s*each + i)
			requireOutcome(t, fmt.Sprint("seed ", seed), id, err, got[id], broken)
		}
	}
}

// A peer that sleeps is woken for a frame in the ring that was sent while another sender's descriptors were refused.
func TestPeerIsWokenAfterDescriptorsWereRefused(t *testing.T) {
	for _, leaving := range []bool{false, true} {
		server, client := ringPipe(t, Limits{})
		got := make(chan uint64, 4)
		go func() {
			for {
				frame, err := server.Receive()
				if err != nil {
					close(got)
					return
				}
				frame.Files.Close()
				got <- frame.ID
			}
		}()
		time.Sleep(20 * time.Millisecond) // the peer sleeps by then; if it does not, it needs no bell
		var sender sync.WaitGroup
		socket := &faultySocket{left: 1 << 40, refuse: func() bool { return true }}
		var other error
		if leaving { // a frame that is not flushed is in the ring when the stream leaves it
			require.NoError(t, client.SendLater(KindRequest, 50, item(20)))
		} else {
			socket.before = func() { // the stream has left the ring; the frame is queued
				sender.Go(func() { other = client.Send(KindRequest, 50, item(20)) })
				sender.Wait()
			}
		}
		client.writer.sink.call = socket.call
		require.ErrorIs(t, client.Send(KindRequest, 51, item(20), memfds(t, 1)...), unix.ETOOMANYREFS)
		require.NoError(t, other)
		select {
		case id := <-got:
			require.EqualValues(t, 50, id)
		case <-time.After(10 * time.Second):
			t.Fatal("the peer was not woken")
		}
		client.Close()
		for range got {
		}
		server.Close()
	}
}

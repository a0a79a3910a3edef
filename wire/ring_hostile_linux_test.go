package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/wire/internal/ring"
)

// ringPeer is a hostile peer with full access to the ring's memory and the bare socket.
type ringPeer struct {
	t    testing.TB
	conn *Conn // the honest side
	raw  *net.UnixConn
	mem  []byte
	out  *ring.Producer // to the honest side
}

// Offsets in the memory, as PROTOCOL.md specifies.
const (
	firstTail, firstHead, firstAsleep    = 0, 128, 256
	secondTail, secondHead, secondAsleep = 512, 640, 768
	firstData                            = 4096
)

// hostileClient returns a peer to which conn has offered a ring that both streams use.
func hostileClient(t testing.TB, limits Limits) *ringPeer {
	t.Helper()
	requireRings(t)
	requireNoRings(t)
	if limits.Ring == 0 {
		limits.Ring = 4096
	}
	conn, raw := rawPair(t, limits)
	offerRing(conn)
	for range ringAfter {
		sendRaw(t, raw, frameBytes(KindRequest, 0, 1, item(20)))
		_, err := conn.Receive()
		require.NoError(t, err)
	}
	p := &ringPeer{t: t, conn: conn, raw: raw}
	head, control := make([]byte, HeaderBytes), make([]byte, 64)
	n, oob, _, _, err := raw.ReadMsgUnix(head, control)
	require.NoError(t, err)
	require.Equal(t, frameBytes(KindRing, 1, 0, nil), head[:n])
	messages, err := unix.ParseSocketControlMessage(control[:oob])
	require.NoError(t, err)
	fds, err := unix.ParseUnixRights(&messages[0])
	require.NoError(t, err)
	require.Len(t, fds, 1)
	p.open(fds[0])
	require.NoError(t, unix.Close(fds[0]))
	sendRaw(t, raw, frameBytes(KindRing, 0, 0, nil))
	p.put(frameBytes(KindRequest, 0, 1, item(20)))
	_, err = conn.Receive()
	require.NoError(t, err)
	require.NoError(t, conn.Send(KindResponse, 1, item(20)))
	require.True(t, onRing(conn))
	return p
}

// open maps the memory twice: by the package, and as bytes.
func (p *ringPeer) open(fd int) {
	m, err := ring.Open(fd)
	require.NoError(p.t, err)
	var stat unix.Stat_t
	require.NoError(p.t, unix.Fstat(fd, &stat))
	p.mem, err = unix.Mmap(fd, 0, int(stat.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(p.t, err)
	p.out = m.Producer(ring.First)
	p.t.Cleanup(func() {
		require.NoError(p.t, m.Close())
		require.NoError(p.t, unix.Munmap(p.mem))
	})
}

// put publishes bytes as a correct peer does.
func (p *ringPeer) put(parts ...[]byte) {
	p.t.Helper()
	done, err := p.out.Put(bytes.Join(parts, nil), nil, 0)
	require.NoError(p.t, err)
	require.True(p.t, done)
}

// set writes an index.
func (p *ringPeer) set(at int, n uint64) { binary.NativeEndian.PutUint64(p.mem[at:], n) }

func (p *ringPeer) get(at int) uint64 { return binary.NativeEndian.Uint64(p.mem[at:]) }

func TestHostileRings(t *testing.T) {
	plain := frameBytes(KindRequest, 0, 1, item(10))
	tests := []struct {
		name   string
		attack func(*ringPeer)
		good   int // frames received before the end
		want   error
	}{
		{"tail far ahead", func(p *ringPeer) { p.set(firstTail, p.get(firstTail)+4097) }, 0, ErrProtocol},
		{"tail moves back", func(p *ringPeer) { p.set(firstTail, p.get(firstTail)-1) }, 0, ErrProtocol},
		{"tail is 0", func(p *ringPeer) { p.set(firstTail, 0) }, 0, ErrProtocol},
		{"largest tail", func(p *ringPeer) { p.set(firstTail, 1<<64-1) }, 0, ErrProtocol},
		{"half a header", func(p *ringPeer) { p.put(plain[:9]) }, 0, ErrProtocol},
		{"half a body", func(p *ringPeer) { p.put(plain[:20]) }, 0, ErrProtocol},
		{"a frame and half of another", func(p *ringPeer) { p.put(plain, plain[:20]) }, 1, ErrProtocol},
		{"a length that lies", func(p *ringPeer) { p.put(frameBytes(KindRequest, 0, 1, item(100))[:50], plain) }, 0, ErrProtocol},
		{"a length beyond the ring", func(p *ringPeer) {
			p.put([]byte{0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, item(100))
		}, 0, ErrProtocol},
		{"a length beyond the limit", func(p *ringPeer) {
			p.put([]byte{0xff, 0xff, 0xff, 0xff, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, item(100))
		}, 0, ErrTooLarge},
		{"a frame without a body", func(p *ringPeer) { p.put(frameBytes(KindRequest, 0, 1, nil)) }, 0, ErrProtocol},
		{"zeros", func(p *ringPeer) { p.put(make([]byte, 64)) }, 0, ErrProtocol},
		{"unknown kind", func(p *ringPeer) { p.put(frameBytes(77, 0, 1, item(10))) }, 0, ErrProtocol},
		{"descriptors in the ring", func(p *ringPeer) { p.put(frameBytes(KindRequest, 1, 1, item(10))) }, 0, ErrProtocol},
		{"a files frame in the ring", func(p *ringPeer) { p.put(frameBytes(KindFiles, 1, 1, nil)) }, 0, ErrProtocol},
		{"a bell in the ring", func(p *ringPeer) { p.put(frameBytes(KindBell, 0, 0, nil)) }, 0, ErrProtocol},
		{"an offer in the ring", func(p *ringPeer) { p.put(frameBytes(KindRing, 1, 0, nil)) }, 0, ErrProtocol},
		{"a frame over the socket that belongs in the ring", func(p *ringPeer) { sendRaw(p.t, p.raw, plain) }, 0, ErrProtocol},
		{"a bell that nobody waits for", func(p *ringPeer) {
			for range 3 { // one may be expected if the other side slept meanwhile
				sendRaw(p.t, p.raw, frameBytes(KindBell, 0, 0, nil))
			}
		}, 0, ErrProtocol},
		{"a bell with a descriptor", func(p *ringPeer) {
			sendRaw(p.t, p.raw, frameBytes(KindBell, 0, 0, nil), memfds(p.t, 1)...)
		}, 0, ErrProtocol},
		{"back into the ring where it is", func(p *ringPeer) { sendRaw(p.t, p.raw, frameBytes(KindRing, 0, 0, nil)) }, 0, ErrProtocol},
		{"out of the ring twice", func(p *ringPeer) {
			p.put(frameBytes(KindRing, 0, 0, nil), frameBytes(KindRing, 0, 0, nil), plain)
			sendRaw(p.t, p.raw, frameBytes(KindRing, 0, 0, nil))
			sendRaw(p.t, p.raw, plain)
			sendRaw(p.t, p.raw, frameBytes(KindRing, 0, 0, nil))
			p.raw.CloseWrite()
		}, 2, io.EOF}, // correct: out, back, out, back
		{"a client that offers", func(p *ringPeer) {
			p.put(frameBytes(KindRing, 0, 0, nil))
			sendRaw(p.t, p.raw, frameBytes(KindRing, 1, 0, nil), memfds(p.t, 1)...)
		}, 0, ErrProtocol},
		{"files frames, and then the ring", func(p *ringPeer) {
			p.put(frameBytes(KindRing, 0, 0, nil), plain)
			sendRaw(p.t, p.raw, frameBytes(KindFiles, 2, 1, nil), memfds(p.t, 2)...)
			sendRaw(p.t, p.raw, frameBytes(KindRing, 0, 0, nil))
		}, 0, ErrProtocol},
		{"a peer that stops in the middle of a bell", func(p *ringPeer) { sendRaw(p.t, p.raw, frameBytes(KindBell, 0, 0, nil)[:7]) }, 0, ErrTimeout},
		{"a peer that stops in the middle of a frame behind the ring", func(p *ringPeer) {
			p.put(plain, frameBytes(KindRing, 0, 0, nil))
			sendRaw(p.t, p.raw, plain[:20])
		}, 1, ErrTimeout},
		{"the end within a bell", func(p *ringPeer) {
			p.put(plain)
			sendRaw(p.t, p.raw, frameBytes(KindBell, 0, 0, nil)[:7])
			p.raw.CloseWrite()
		}, 1, io.ErrUnexpectedEOF},
		{"the end with half a frame in the ring", func(p *ringPeer) {
			p.put(plain, plain[:20])
			p.raw.CloseWrite()
		}, 1, ErrProtocol},
		{"a word to the socket, and its end", func(p *ringPeer) {
			p.put(plain, frameBytes(KindRing, 0, 0, nil))
			p.raw.CloseWrite()
		}, 1, io.EOF},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := hostileClient(t, Limits{FrameTimeout: 200 * time.Millisecond, Frame: 1 << 20})
			tt.attack(p)
			require.NoError(t, p.conn.SetReadDeadline(time.Now().Add(waitLong)))
			got := 0
			for {
				f, err := p.conn.Receive()
				if err != nil {
					require.ErrorIs(t, err, tt.want)
					_, again := p.conn.Receive()
					require.Equal(t, err, again, "it is final")
					break
				}
				f.Files.Close()
				got++
			}
			require.Equal(t, tt.good, got)
			require.NoError(t, p.conn.Close())
		})
	}
}

// A reader that publishes false heads violates the protocol.
func TestHostileReaders(t *testing.T) {
	for name, head := range map[string]func(*ringPeer) uint64{
		"head ahead of what was written": func(p *ringPeer) uint64 { return p.get(secondTail) + 1 },
		"largest head":                   func(*ringPeer) uint64 { return 1<<64 - 1 },
		"head moves back":                func(p *ringPeer) uint64 { return p.get(secondHead) - 1 },
	} {
		t.Run(name, func(t *testing.T) {
			p := hostileClient(t, Limits{})
			p.set(secondHead, p.get(secondTail)) // it reads
			for range 10 {
				require.NoError(t, p.conn.Send(KindResponse, 1, item(400)))
			}
			p.set(secondHead, head(p))
			var err error
			for range 100 {
				if err = p.conn.Send(KindResponse, 1, item(400)); err != nil {
					break
				}
			}
			require.ErrorIs(t, err, ErrProtocol)
			require.ErrorIs(t, p.conn.Send(KindResponse, 1, item(400)), ErrProtocol)
		})
	}
}

// The peer overwrites frames while they are read. Each header is evaluated once: the body has the length in its header,
// and no byte beyond it is read.
func TestBytesThatChangeWhileRead(t *testing.T) {
	p := hostileClient(t, Limits{FrameTimeout: time.Second})
	stop := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() {
		short, long := frameBytes(KindRequest, 0, 1, item(10))[:4], frameBytes(KindRequest, 0, 1, item(3000))[:4]
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			part := short
			if n%2 == 0 {
				part = long
			}
			for at := firstData; at < firstData+4096-4; at += 26 { // a frame of 10 bytes occupies 26
				copy(p.mem[at:], part)
			}
		}
	})
	defer changing.Wait()
	defer close(stop)
	frames := bytes.Repeat(frameBytes(KindRequest, 0, 1, item(10)), 100)
	require.NoError(t, p.conn.SetReadDeadline(time.Now().Add(waitLong)))
	for {
		if done, err := p.out.Put(frames, nil, 0); err != nil || !done {
			require.NoError(t, err)
			break
		}
		f, err := p.conn.Receive()
		if err != nil {
			require.ErrorIs(t, err, ErrProtocol)
			return
		}
		require.Contains(t, []int{10, 3000}, len(f.Body))
		for p.conn.Buffered() {
			if _, err := p.conn.Receive(); err != nil {
				require.ErrorIs(t, err, ErrProtocol)
				return
			}
		}
	}
}

// A peer may ring once for each time that this side slept. One more bell ends the connection.
func TestDoorbellStorm(t *testing.T) {
	p := hostileClient(t, Limits{})
	var ringer sync.WaitGroup
	ringer.Go(func() {
		for {
			if _, err := p.raw.Write(frameBytes(KindBell, 0, 0, nil)); err != nil {
				return
			}
		}
	})
	_, err := p.conn.Receive()
	require.ErrorIs(t, err, ErrProtocol)
	require.NoError(t, p.conn.Close())
	ringer.Wait()
}

// A peer that always claims to sleep causes one bell per frame, and is disconnected by the limits if it reads none of
// them.
func TestSleeperThatLies(t *testing.T) {
	p := hostileClient(t, Limits{WriteTimeout: 100 * time.Millisecond})
	var err error
	for n := 0; err == nil; n++ {
		require.Less(t, n, 1_000_000)
		binary.NativeEndian.PutUint32(p.mem[secondAsleep:], 1)
		err = p.conn.Send(KindResponse, 1, item(20))
	}
	require.ErrorIs(t, err, ErrTimeout)
}

// The memory's seals keep its size. If a peer punches holes into it, both sides read zeros there.
func TestHolesInARing(t *testing.T) {
	p := hostileClient(t, Limits{})
	p.put(frameBytes(KindRequest, 0, 1, item(10)))
	fd := reopenRing(t)
	defer unix.Close(fd)
	require.Error(t, unix.Ftruncate(fd, 0))
	require.NoError(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(p.mem))))
	_, err := p.conn.Receive()
	require.ErrorIs(t, err, ErrProtocol)
	_ = p.conn.Send(KindResponse, 1, item(10))
	require.NoError(t, p.conn.Close())
}

// reopenRing opens the memory of a ring through a mapping of this process.
func reopenRing(t testing.TB) int {
	t.Helper()
	maps, err := os.ReadDir("/proc/self/map_files")
	require.NoError(t, err)
	for _, m := range maps {
		path := "/proc/self/map_files/" + m.Name()
		if target, err := os.Readlink(path); err == nil && bytes.Contains([]byte(target), []byte("sharedtensor-ring")) {
			fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
			drivertest.Needs(t, "procfs", err != unix.EPERM, "this process may not open what it has mapped")
			require.NoError(t, err)
			return fd
		}
	}
	require.Fail(t, "no ring is mapped")
	return -1
}

// Memory that a server offers is checked before it is mapped, and accepted once.
func TestHostileOffers(t *testing.T) {
	requireRings(t)
	good := int64(ring.Bytes(4096))
	sealed := func(t *testing.T, size int64, seals int) *os.File {
		fd, err := unix.MemfdCreate("offer", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		require.NoError(t, err)
		f := os.NewFile(uintptr(fd), "offer")
		t.Cleanup(func() { f.Close() })
		require.NoError(t, f.Truncate(size))
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
		require.NoError(t, err)
		return f
	}
	const both = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	offer := frameBytes(KindRing, 1, 0, nil)
	for name, attack := range map[string]func(t *testing.T, raw *net.UnixConn){
		"not sealed":      func(t *testing.T, raw *net.UnixConn) { sendRaw(t, raw, offer, sealed(t, good, 0)) },
		"may shrink":      func(t *testing.T, raw *net.UnixConn) { sendRaw(t, raw, offer, sealed(t, good, unix.F_SEAL_GROW)) },
		"empty":           func(t *testing.T, raw *net.UnixConn) { sendRaw(t, raw, offer, sealed(t, 0, both)) },
		"too large":       func(t *testing.T, raw *net.UnixConn) { sendRaw(t, raw, offer, sealed(t, 1<<40, both)) },
		"no power of two": func(t *testing.T, raw *net.UnixConn) { sendRaw(t, raw, offer, sealed(t, good+16384, both)) },
		"no descriptor":   func(t *testing.T, raw *net.UnixConn) { sendRaw(t, raw, offer) },
		"two descriptors": func(t *testing.T, raw *net.UnixConn) {
			sendRaw(t, raw, frameBytes(KindRing, 2, 0, nil), memfds(t, 2)...)
		},
		"with a body": func(t *testing.T, raw *net.UnixConn) {
			sendRaw(t, raw, frameBytes(KindRing, 1, 0, item(10)), memfds(t, 1)...)
		},
		"with a number": func(t *testing.T, raw *net.UnixConn) {
			sendRaw(t, raw, frameBytes(KindRing, 1, 5, nil), memfds(t, 1)...)
		},
		"into no ring":    func(t *testing.T, raw *net.UnixConn) { sendRaw(t, raw, frameBytes(KindRing, 0, 0, nil)) },
		"a bell, no ring": func(t *testing.T, raw *net.UnixConn) { sendRaw(t, raw, frameBytes(KindBell, 0, 0, nil)) },
		"offered twice": func(t *testing.T, raw *net.UnixConn) {
			sendRaw(t, raw, offer, sealed(t, good, both))
			sendRaw(t, raw, offer, sealed(t, good, both))
		},
		"a socket": func(t *testing.T, raw *net.UnixConn) {
			f, err := raw.File()
			require.NoError(t, err)
			defer f.Close()
			sendRaw(t, raw, offer, f)
		},
		"ahead of a frame": func(t *testing.T, raw *net.UnixConn) {
			sendRaw(t, raw, frameBytes(KindFiles, 1, 0, nil), sealed(t, good, both))
			sendRaw(t, raw, frameBytes(KindRing, 0, 0, nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			requireNoRings(t)
			conn, raw := rawPair(t, Limits{})
			conn.allowRing(false)
			attack(t, raw)
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(waitLong)))
			_, err := conn.Receive()
			require.ErrorIs(t, err, ErrProtocol)
			require.NoError(t, conn.Close())
		})
	}

	t.Run("nobody asked", func(t *testing.T) {
		requireNoRings(t)
		conn, raw := rawPair(t, Limits{})
		sendRaw(t, raw, offer, sealed(t, good, both))
		_, err := conn.Receive()
		require.ErrorIs(t, err, ErrProtocol)
	})
	t.Run("memory that cannot be written", func(t *testing.T) { // the connection continues without a ring
		requireNoRings(t)
		conn, raw := rawPair(t, Limits{})
		conn.allowRing(false)
		sendRaw(t, raw, offer, sealed(t, good, both|unix.F_SEAL_FUTURE_WRITE))
		sendRaw(t, raw, frameBytes(KindResponse, 0, 1, item(10)))
		f, err := conn.Receive()
		require.NoError(t, err)
		require.Equal(t, item(10), f.Body)
		require.NoError(t, conn.Send(KindRequest, 1, item(10)))
		require.False(t, onRing(conn))
	})
}

// FuzzRing lets a client write anything into the ring, with any tail, and send anything over the socket. Receive
// returns frames and errors, never blocks, and leaves nothing behind.
func FuzzRing(f *testing.F) {
	plain := frameBytes(KindRequest, 0, 1, item(10))
	word := frameBytes(KindRing, 0, 0, nil)
	f.Add(plain, []byte{}, int64(0))
	f.Add(append(bytes.Clone(plain), word...), plain, int64(0))
	f.Add(word, append(bytes.Clone(plain), word...), int64(1))
	f.Add(plain[:20], frameBytes(KindBell, 0, 0, nil), int64(-5))
	f.Fuzz(func(t *testing.T, inRing, inSocket []byte, lie int64) {
		if len(inRing) > 4000 || len(inSocket) > 64<<10 {
			return
		}
		p := hostileClient(t, Limits{FrameTimeout: time.Minute, Frame: 1 << 20})
		p.put(inRing)
		p.set(firstTail, p.get(firstTail)+uint64(lie))
		go func() {
			p.raw.Write(inSocket)
			p.raw.CloseWrite()
		}()
		for {
			frame, err := p.conn.Receive()
			if err != nil {
				break
			}
			require.LessOrEqual(t, len(frame.Body), 64<<10)
			frame.Files.Close()
		}
		require.NoError(t, p.conn.Close())
	})
}

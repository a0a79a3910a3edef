package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/wire/internal/ring"
)

// requireRings skips a test if rings are disabled.
func requireRings(t testing.TB) {
	t.Helper()
	drivertest.Needs(t, "rings", os.Getenv(ringEnv) != "off", ringEnv+" is off")
	drivertest.Needs(t, "processors", ringsHere(), "with one processor there are no rings")
}

// requireNoRings checks at the end of a test that no ring is left.
func requireNoRings(t testing.TB) {
	t.Helper()
	requireSameDescriptors(t)
	t.Cleanup(func() { require.Zero(t, ringMappings(t)) })
}

// ringMappings returns the number of mapped rings of this process.
func ringMappings(t testing.TB) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(maps), "sharedtensor-ring")
}

// ringPipe returns a pair of connections whose streams are in the ring in both directions.
func ringPipe(t testing.TB, limits Limits) (server, client *Conn) {
	t.Helper()
	requireRings(t)
	requireNoRings(t)
	server, client = pipe(t, limits)
	offerRing(server)
	client.allowRing(false)
	for range ringAfter + 2 {
		exchange(t, client, server)
		exchange(t, server, client)
	}
	exchange(t, client, server)
	require.True(t, onRing(server) && onRing(client))
	return server, client
}

// offerRing makes c offer a ring however slowly frames arrive.
func offerRing(c *Conn) {
	c.allowRing(true)
	c.reader.ring.within = time.Hour
}

// exchange sends one frame from a to b.
func exchange(t testing.TB, a, b *Conn) {
	t.Helper()
	require.NoError(t, a.Send(KindRequest, 7, item(20)))
	f, err := b.Receive()
	require.NoError(t, err)
	require.Equal(t, Frame{Kind: KindRequest, ID: 7, Body: item(20)}, f)
}

// onRing reports whether the stream of c is in the ring.
func onRing(c *Conn) bool {
	c.writer.mu.Lock()
	defer c.writer.mu.Unlock()
	return c.writer.ring.on
}

func TestRingIsOfferedToThoseThatStay(t *testing.T) {
	requireRings(t)
	requireNoRings(t)
	server, client := pipe(t, Limits{})
	offerRing(server)
	client.allowRing(false)
	for range ringAfter - 1 {
		exchange(t, client, server)
	}
	require.Zero(t, ringMappings(t))
	exchange(t, client, server)
	require.Equal(t, 1, ringMappings(t))
	exchange(t, server, client) // carries the offer
	require.Equal(t, 2, ringMappings(t))
	exchange(t, client, server) // announces that the client's stream moves to the ring
	require.True(t, onRing(client))
	require.False(t, onRing(server))
	exchange(t, client, server) // the first frame from the ring proves that the client has mapped it
	exchange(t, server, client)
	require.True(t, onRing(server))
}

// Frames that arrive slowly get no ring, however many there are.
func TestRingIsNotOfferedToThoseThatSeldomAsk(t *testing.T) {
	requireRings(t)
	requireNoRings(t)
	server, client := pipe(t, Limits{})
	server.allowRing(true)
	client.allowRing(false)
	for range 4 {
		server.reader.ring.began = time.Now().Add(-ringWithin)
		for range ringAfter {
			exchange(t, client, server)
		}
		require.Zero(t, ringMappings(t))
	}
	server.reader.ring.within = time.Hour
	for range ringAfter {
		exchange(t, client, server)
	}
	require.Equal(t, 1, ringMappings(t), "those that hurry then get one")
}

func TestRingIsNotOffered(t *testing.T) {
	requireRings(t)
	for name, limits := range map[string]Limits{
		"by the limit": {Ring: -1},
		"no room":      {Charge: (&meter{limit: int64(ring.Bytes(ring.DefaultBytes)) - 1}).charge},
	} {
		t.Run(name, func(t *testing.T) {
			requireNoRings(t)
			server, client := pipe(t, limits)
			offerRing(server)
			client.allowRing(false)
			for range 4 * ringAfter {
				exchange(t, client, server)
				exchange(t, server, client)
			}
			require.False(t, onRing(server) || onRing(client))
			require.Zero(t, ringMappings(t))
		})
	}
	require.Negative(t, Limits{Ring: -1}.WithDefaults().Ring)
	require.Equal(t, ring.DefaultBytes, Limits{}.WithDefaults().Ring)
	require.Equal(t, 4096, Limits{Ring: 1}.WithDefaults().Ring)
	require.Equal(t, 1<<20, Limits{Ring: 1 << 40}.WithDefaults().Ring)
}

func TestRingIsChargedUntilTheEnd(t *testing.T) {
	held := &meter{limit: 1 << 20}
	server, client := ringPipe(t, Limits{Charge: held.charge, Ring: 4096})
	require.Equal(t, ring.Bytes(4096), held.held())
	require.NoError(t, server.Close())
	require.Zero(t, held.held())
	require.NoError(t, client.Close())
}

func TestSmallFramesTouchNoSocket(t *testing.T) {
	server, client := ringPipe(t, Limits{})
	pos := server.reader.pos
	for i := range 1000 {
		require.NoError(t, client.Send(KindRequest, uint64(i), item(1+9*(i%800))))
		f, err := server.Receive()
		require.NoError(t, err)
		require.Equal(t, item(1+9*(i%800)), f.Body)
	}
	require.Equal(t, pos, server.reader.pos, "bytes of the socket")
}

// Several goroutines send frames of random sizes, some with descriptors, in both directions. The frames of each arrive
// whole and in order.
func TestRingKeepsOrder(t *testing.T) {
	for _, size := range []int{4096, 32 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			server, client := ringPipe(t, Limits{Ring: size})
			const senders = 4
			frames := 400
			if testing.Short() {
				frames = 100
			}
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			file := memfds(t, 1)
			var work sync.WaitGroup
			for dir, ends := range [2][2]*Conn{{server, client}, {client, server}} {
				for sender := range senders {
					work.Go(func() {
						rng := rand.New(rand.NewPCG(seed, uint64(dir*senders+sender)))
						for n := range frames {
							body := item(100)
							switch rng.IntN(10) {
							case 0:
								body = item(9 + rng.IntN(100<<10)) // mostly over the socket
							case 1, 2:
								body = item(9 + rng.IntN(8<<10))
							}
							var files []*os.File
							if rng.IntN(12) == 0 {
								files = file
							}
							id := uint64(sender)<<32 | uint64(n)
							var err error
							switch rng.IntN(4) {
							case 0:
								err = ends[0].SendLater(KindRequest, id, body, files...)
							case 1:
								err = ends[0].SendShared(KindRequest, id, body[:9], body[9:], files...)
							default:
								err = ends[0].Send(KindRequest, id, body, files...)
							}
							if err != nil {
								t.Errorf("send %d of %d: %v", n, sender, err)
								return
							}
						}
						if err := ends[0].Flush(); err != nil {
							t.Error(err)
						}
					})
				}
				work.Go(func() {
					var next [senders]uint64
					rng := rand.New(rand.NewPCG(seed, 100+uint64(dir)))
					for range senders * frames {
						f, err := ends[1].Receive()
						if err != nil {
							t.Errorf("receive: %v", err)
							return
						}
						sender, n := f.ID>>32, f.ID&0xffffffff
						if next[sender] != n || int(binary.BigEndian.Uint32(f.Body[1:])) != len(f.Body)-5 {
							t.Errorf("frame %d of %d with %d bytes, expected %d", n, sender, len(f.Body), next[sender])
						}
						next[sender]++
						f.Files.Close()
						if rng.IntN(100) == 0 {
							time.Sleep(time.Millisecond) // so that the ring fills up
						}
					}
				})
			}
			work.Wait()
		})
	}
}

// Sends to a peer that does not read wait as on a socket, up to the same limit, and the frames arrive in order.
func TestFullRingGoesOverTheSocket(t *testing.T) {
	server, client := ringPipe(t, Limits{Ring: 4096, WriteTimeout: time.Minute})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	sent := uint64(0)
	for ; ; sent++ {
		if err := client.SendContext(ctx, KindRequest, sent, item(500)); err != nil {
			require.ErrorIs(t, err, ErrNotSent)
			break
		}
	}
	require.False(t, onRing(client))
	require.Greater(t, sent, uint64(100), "the socket's buffer takes more than the ring")
	for n := range sent {
		f, err := server.Receive()
		require.NoError(t, err)
		require.Equal(t, n, f.ID)
	}
	for range 3 { // the next one announces that the stream is in the ring again
		exchange(t, client, server)
	}
	require.True(t, onRing(client))
}

func TestPeerThatNeverReadsARing(t *testing.T) {
	_, client := ringPipe(t, Limits{WriteTimeout: 50 * time.Millisecond})
	var err error
	for err == nil {
		err = client.Send(KindRequest, 1, item(8000))
	}
	require.ErrorIs(t, err, ErrTimeout)
	_, err = client.Receive()
	require.Error(t, err, "the connection is closed")
}

// Data that a peer put into the ring before it left arrives before the end.
func TestRingIsReadToItsEnd(t *testing.T) {
	for _, how := range []string{"close", "goodbye", "close write", "large"} {
		t.Run(how, func(t *testing.T) {
			server, client := ringPipe(t, Limits{})
			for n := range uint64(50) {
				require.NoError(t, server.Send(KindResponse, n, item(100)))
			}
			more := 0
			switch how {
			case "goodbye":
				require.NoError(t, server.Send(KindGoodbye, 0, nil))
				more = 1
			case "large":
				require.NoError(t, server.Send(KindResponse, 50, item(50_000)))
				more = 1
			case "close write":
				require.NoError(t, server.CloseWrite())
			}
			if how != "close write" {
				require.NoError(t, server.Close())
			}
			for n := range 50 + more {
				f, err := client.Receive()
				require.NoError(t, err)
				if n < 50 {
					require.EqualValues(t, n, f.ID)
				}
			}
			for range 2 {
				_, err := client.Receive()
				require.ErrorIs(t, err, io.EOF)
			}
		})
	}
}

// One side waits in the poller when the other sends.
func TestSleeperIsWoken(t *testing.T) {
	server, client := ringPipe(t, Limits{BusyPoll: -1})
	got := make(chan error)
	for range 100 {
		go func() {
			_, err := server.Receive()
			got <- err
		}()
		time.Sleep(200 * time.Microsecond) // usually it sleeps by then; both cases must work
		require.NoError(t, client.Send(KindRequest, 1, item(30)))
		require.NoError(t, <-got)
	}
}

// Frames are sent at the two moments at which a wake-up could be lost: between the reader's last check of the ring and
// its announcement, and between its announcement and its wait in the poller.
func TestFrameThatComesAsTheReaderGoesToSleep(t *testing.T) {
	for name, asleep := range map[string]bool{"before it says so": false, "after it has said so": true} {
		t.Run(name, func(t *testing.T) {
			server, client := ringPipe(t, Limits{BusyPoll: -1})
			src := &server.reader.src
			ready, sent := src.ready, 0
			defer func() { src.ready = ready }()
			src.ready = func(fd uintptr) bool {
				send := func() {
					sent++
					require.NoError(t, client.Send(KindRequest, 1, item(30)))
				}
				if sent == 0 && !asleep {
					send()
				}
				done := ready(fd)
				if sent == 0 && !done { // otherwise it has read bells and checks again
					send()
				}
				return done
			}
			require.NoError(t, server.SetReadDeadline(time.Now().Add(time.Minute)))
			for range 20 {
				sent = 0
				f, err := server.Receive()
				require.NoError(t, err, "it sleeps, and nobody wakes it")
				require.Equal(t, item(30), f.Body)
				require.Equal(t, 1, sent)
			}
		})
	}
}

func TestSendLaterWithARing(t *testing.T) {
	server, client := ringPipe(t, Limits{BusyPoll: -1})
	require.NoError(t, server.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err := server.Receive()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, server.SetReadDeadline(time.Time{}))
	got := make(chan error)
	go func() {
		_, err := server.Receive()
		got <- err
	}()
	time.Sleep(5 * time.Millisecond)
	require.NoError(t, client.SendLater(KindRequest, 1, item(30)))
	require.NoError(t, client.Flush())
	require.NoError(t, <-got)
}

func TestBufferedWithARing(t *testing.T) {
	server, client := ringPipe(t, Limits{})
	require.False(t, server.Buffered())
	require.NoError(t, client.Send(KindRequest, 1, item(30)))
	require.True(t, server.Buffered())
	_, err := server.Receive()
	require.NoError(t, err)
	require.False(t, server.Buffered())
	client.writer.mu.Lock()
	require.NoError(t, client.writer.leaveRingLocked())
	client.writer.mu.Unlock()
	require.False(t, server.Buffered(), "the next frame is not there")
}

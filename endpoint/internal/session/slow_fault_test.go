package session_test

import (
	"context"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// impatient returns an owner in this process that waits only briefly for clients that do not read.
func impatient(t *testing.T, requests int) *endpoint.Server {
	t.Helper()
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	return fixture.Serve(t, endpoint.ServerOptions{
		Registry: loadRegistry(new(loadCounts)), Logger: fixture.Discard(),
		Limits: endpoint.Limits{Requests: requests, Wire: wire.Limits{WriteTimeout: 200 * time.Millisecond, FrameTimeout: 200 * time.Millisecond}},
	})
}

// bystander is a client whose calls must not be delayed. It calls until the returned function is called, which fails
// the test if a call was too slow.
func bystander(t *testing.T, socket string) (stop func()) {
	t.Helper()
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, OverSocket: true})
	require.NoError(t, err)
	done := make(chan struct{})
	var calling sync.WaitGroup
	var slowest time.Duration
	calls := 0
	calling.Go(func() {
		for {
			start := time.Now()
			if _, err := endpoint.Call[int](context.Background(), c, "next", 1); err != nil {
				t.Error(err)
				return
			}
			slowest = max(slowest, time.Since(start))
			calls++
			select { // at least one call is made, however short the test is
			case <-done:
				return
			default:
			}
		}
	})
	return func() {
		t.Helper()
		close(done)
		calling.Wait()
		c.Close()
		t.Logf("%d calls beside it, the slowest took %v", calls, slowest)
		require.Less(t, slowest, fixture.WaitLimit)
		require.Positive(t, calls)
	}
}

// cutOff waits until the owner has only the given number of clients.
func cutOff(t *testing.T, s *endpoint.Server, left int) {
	t.Helper()
	proctest.Eventually(t, fixture.WaitLimit, "the client that does not read is cut off", func() bool {
		info, err := s.ServerInfo(context.Background())
		require.NoError(t, err)
		return int(info.Stats.Clients) == left
	})
}

func TestSessionUnreadResults(t *testing.T) {
	const requests, size = 32, 256 << 10
	s := impatient(t, requests)
	stop := bystander(t, s.Socket())
	slow := fixture.PolitePeer(t, s.Socket())
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	args, err := message.Marshal(size)
	require.NoError(t, err)
	body, err := message.MarshalPayload(message.Call{Endpoint: "bytes", Args: args})
	require.NoError(t, err)
	request := message.AppendRequest(nil, message.Request{Op: message.OpCall, Body: body})
	var asking sync.WaitGroup
	asking.Go(func() {
		for id := range uint64(20_000) {
			if slow.Conn.Send(wire.KindRequest, id+1, request) != nil {
				return // as it must
			}
		}
		t.Error("the owner took everything")
	})
	cutOff(t, s, 1)
	asking.Wait()
	slow.Conn.Close()
	stop()
	var after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, after.HeapAlloc, before.HeapAlloc+4<<20)
	require.Less(t, after.Sys, before.Sys+64<<20, "what waited was never more than the requests that may be in flight")
}

func TestSessionUnreadEvents(t *testing.T) {
	s := impatient(t, 0)
	dev := fixture.Device(t)
	watching, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer watching.Close()
	w, err := watching.Watch(context.Background(), "m")
	require.NoError(t, err)
	stop := bystander(t, s.Socket())
	slow := fixture.PolitePeer(t, s.Socket())
	_, err = slow.Send(message.OpWatch, message.Watch{})
	require.NoError(t, err)

	var version uint64
	start := time.Now()
	proctest.Eventually(t, fixture.WaitLimit, "the client that does not read is cut off", func() bool {
		sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 1, Bytes: 1})
		require.NoError(t, err)
		version = fixture.PublishOn(t, s, "m", sd)
		info, err := s.ServerInfo(context.Background())
		require.NoError(t, err)
		return info.Stats.Clients == 2
	})
	t.Logf("%d publications took %v", version, time.Since(start))
	for e, err := range w.Events(context.Background()) {
		require.NoError(t, err, "who reads hears of the newest")
		if e.Version == version {
			break
		}
	}
	stop()
}

// Half-open clients are disconnected and do not affect others.
func TestSessionHalfOpen(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, raw *net.UnixConn, conn *wire.Conn)
	}{
		{"it says half a frame and no more", func(t *testing.T, raw *net.UnixConn, _ *wire.Conn) {
			_, err := raw.Write([]byte{0, 0, 1, 0, 0, 2})
			require.NoError(t, err)
		}},
		{"it says a header and half a body", func(t *testing.T, raw *net.UnixConn, _ *wire.Conn) {
			_, err := raw.Write([]byte{0, 16, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0xa1, 1})
			require.NoError(t, err)
		}},
		{"it says half a frame and hangs up", func(t *testing.T, raw *net.UnixConn, conn *wire.Conn) {
			_, err := raw.Write([]byte{0, 0, 1, 0, 0, 2})
			require.NoError(t, err)
			conn.Close()
		}},
		{"it closes its writing side", func(t *testing.T, raw *net.UnixConn, _ *wire.Conn) {
			require.NoError(t, raw.CloseWrite())
		}},
		{"it closes its reading side, which shows when it is answered", func(t *testing.T, raw *net.UnixConn, conn *wire.Conn) {
			require.NoError(t, raw.CloseRead())
			ping := message.AppendRequest(nil, message.Request{Op: message.OpPing})
			require.NoError(t, conn.Send(wire.KindRequest, 1, ping))
			conn.Send(wire.KindRequest, 2, ping) // fails if the first has taken effect
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := impatient(t, 0)
			stop := bystander(t, s.Socket())
			raw, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.Socket()})
			require.NoError(t, err)
			conn, err := wire.NewConn(raw, wire.Limits{})
			require.NoError(t, err)
			defer conn.Close()
			_, err = message.ClientHandshake(conn, message.Hello{})
			require.NoError(t, err)
			c.spoil(t, raw, conn)
			cutOff(t, s, 1)
			stop()
			start := time.Now()
			require.NoError(t, s.Close())
			require.Less(t, time.Since(start), fixture.WaitLimit, "it does not hold up the end of the owner")
		})
	}
}

package endpoint_test

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A request number that is in use is refused, because its answer could not be distinguished.
func TestHostileRequestNumbers(t *testing.T) {
	s := hostileOwner(t)
	ping, err := message.MarshalRequest(message.OpPing, 0, nil)
	require.NoError(t, err)
	watch, err := message.MarshalRequest(message.OpWatch, 0, message.Watch{})
	require.NoError(t, err)

	p := politePeer(t, s.Socket())
	require.NoError(t, p.conn.Send(wire.KindRequest, 0, ping))
	p.hungUp("id 0")

	p = politePeer(t, s.Socket())
	require.NoError(t, p.conn.Send(wire.KindRequest, 7, watch))
	for { // its answer and its first event
		f, err := p.conn.Receive()
		require.NoError(t, err)
		if f.Kind == wire.KindEvent {
			break
		}
	}
	require.NoError(t, p.conn.Send(wire.KindRequest, 7, ping))
	p.hungUp("in use")
}

// A request with the number of a request in flight is refused.
func TestHostileRequestNumberInFlight(t *testing.T) {
	hostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	var registry endpoint.Registry
	begun := make(chan struct{}, 1)
	require.NoError(t, endpoint.Register(&registry, "wait", func(ctx context.Context, _ int) (int, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return 0, ctx.Err()
	}))
	s := serve(t, endpoint.ServerOptions{Logger: discard(), Registry: &registry})
	p := politePeer(t, s.Socket())
	call, err := message.MarshalRequest(message.OpCall, 0, message.Call{Endpoint: "wait", Args: message.RawMessage{1}})
	require.NoError(t, err)
	ping, err := message.MarshalRequest(message.OpPing, 0, nil)
	require.NoError(t, err)
	require.NoError(t, p.conn.Send(wire.KindRequest, 3, call))
	<-begun
	require.NoError(t, p.conn.Send(wire.KindRequest, 3, ping))
	p.hungUp("in use")
}

// Descriptors without a handle, and those of an operation that takes none, are refused.
func TestHostileUnusedDescriptors(t *testing.T) {
	s := hostileOwner(t)
	p := politePeer(t, s.Socket())
	in, file := offer(t, true)
	require.Contains(t, p.refused(message.CodeProtocol, message.OpPublish, in, file, file), "no handle names descriptor 1")
	require.Contains(t, p.refused(message.CodeProtocol, message.OpPing, message.Ping{}, file), "takes no descriptors")
	p.refused(message.CodeUnsupported, 0x9999, struct{}{}, file)
}

// heapInUse returns the reachable bytes.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The stored text of a label or of a publication's source is short, has no control characters, and retains nothing else
// in memory.
func TestHostileTexts(t *testing.T) {
	hostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	s := serve(t, endpoint.ServerOptions{Logger: discard()})
	const large = 16 << 20
	before := heapInUse()
	p := rawPeer(t, s.Socket())
	_, err := message.ClientHandshake(p.conn, message.Hello{Label: "\x1b[31m" + strings.Repeat("l", 60<<10)})
	require.NoError(t, err)
	in, file := offer(t, true)
	in.Source = "\x1b]0;" + strings.Repeat("s", large)
	answer, err := p.send(message.OpPublish, in, file)
	require.NoError(t, err)
	require.Equal(t, wire.KindResponse, answer.Kind)
	in.Source = ""
	require.Less(t, heapInUse()-before, int64(large/2))

	list := listOf(s)
	require.Len(t, list, 1)
	v := list[0].Versions[0]
	require.Equal(t, "]0;"+strings.Repeat("s", 1024-3), v.Source)
	require.Equal(t, "[31m"+strings.Repeat("l", 64-4), v.Publisher.Label)
	require.NoError(t, s.Withdraw(context.Background(), "n"))

	p.refused(message.CodeInvalidArgument, message.OpTaskWatch, message.WatchTasks{Endpoint: strings.Repeat("e", 1<<20)})
}

// Each release has a row in the answer, so their number is limited.
func TestLimitsReleases(t *testing.T) {
	s := hostileOwner(t)
	p := politePeer(t, s.Socket())
	ids := make([]string, message.MaxReleases+1)
	for i := range ids {
		ids[i] = "x"
	}
	require.Contains(t, p.refused(message.CodeResourceExhausted, message.OpObjectRelease, message.ReleaseObjects{IDs: ids}), "at most 4096")
	require.EqualValues(t, 1, limitUse(t, s, "releases").Refused)
}

package session_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A request number that is in use is refused, because its answer could not be distinguished.
func TestHostileRequestNumbers(t *testing.T) {
	s := fixture.HostileOwner(t)
	ping, err := message.MarshalRequest(message.OpPing, 0, nil)
	require.NoError(t, err)
	watch, err := message.MarshalRequest(message.OpWatch, 0, message.Watch{})
	require.NoError(t, err)

	p := fixture.PolitePeer(t, s.Socket())
	require.NoError(t, p.Conn.Send(wire.KindRequest, 0, ping))
	p.HungUp("id 0")

	p = fixture.PolitePeer(t, s.Socket())
	require.NoError(t, p.Conn.Send(wire.KindRequest, 7, watch))
	for { // its answer and its first event
		f, err := p.Conn.Receive()
		require.NoError(t, err)
		if f.Kind == wire.KindEvent {
			break
		}
	}
	require.NoError(t, p.Conn.Send(wire.KindRequest, 7, ping))
	p.HungUp("in use")
}

// A request with the number of a request in flight is refused.
func TestHostileRequestNumberInFlight(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	var registry endpoint.Registry
	begun := make(chan struct{}, 1)
	require.NoError(t, endpoint.Register(&registry, "wait", func(ctx context.Context, _ int) (int, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return 0, ctx.Err()
	}))
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard(), Registry: &registry})
	p := fixture.PolitePeer(t, s.Socket())
	call, err := message.MarshalRequest(message.OpCall, 0, message.Call{Endpoint: "wait", Args: message.RawMessage{1}})
	require.NoError(t, err)
	ping, err := message.MarshalRequest(message.OpPing, 0, nil)
	require.NoError(t, err)
	require.NoError(t, p.Conn.Send(wire.KindRequest, 3, call))
	<-begun
	require.NoError(t, p.Conn.Send(wire.KindRequest, 3, ping))
	p.HungUp("in use")
}

// Descriptors without a handle are refused, and all descriptors of an operation without handles.
func TestHostileUnusedDescriptors(t *testing.T) {
	s := fixture.HostileOwner(t)
	p := fixture.PolitePeer(t, s.Socket())
	in, file := fixture.Publication(t, true)
	require.Contains(t, p.Refused(message.CodeProtocol, message.OpPublish, in, file, file), "no handle names descriptor 1")
	require.Contains(t, p.Refused(message.CodeProtocol, message.OpPing, message.Ping{}, file), "takes no descriptors")
	p.Refused(message.CodeUnsupported, 0x9999, struct{}{}, file)
}

// The stored text of a label or of a publication's source is short, has no control characters, and retains nothing else
// in memory.
func TestHostileTexts(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard()})
	const large = 16 << 20
	before := fixture.HeapInUse()
	p := fixture.RawPeer(t, s.Socket())
	_, err := message.ClientHandshake(p.Conn, message.Hello{Label: "\x1b[31m" + strings.Repeat("l", 60<<10)})
	require.NoError(t, err)
	in, file := fixture.Publication(t, true)
	in.Source = "\x1b]0;" + strings.Repeat("s", large)
	answer, err := p.Send(message.OpPublish, in, file)
	require.NoError(t, err)
	require.Equal(t, wire.KindResponse, answer.Kind)
	in.Source = ""
	require.Less(t, fixture.HeapInUse()-before, int64(large/2))

	list := fixture.ListOf(s)
	require.Len(t, list, 1)
	v := list[0].Versions[0]
	require.Equal(t, "]0;"+strings.Repeat("s", 1024-3), v.Source)
	require.Equal(t, "[31m"+strings.Repeat("l", 64-4), v.Publisher.Label)
	require.NoError(t, s.Withdraw(context.Background(), "n"))

	p.Refused(message.CodeInvalidArgument, message.OpTaskWatch, message.WatchTasks{Endpoint: strings.Repeat("e", 1<<20)})
}

// Each release has a row in the answer, so their number is limited.
func TestLimitsReleases(t *testing.T) {
	s := fixture.HostileOwner(t)
	p := fixture.PolitePeer(t, s.Socket())
	ids := make([]string, message.MaxReleases+1)
	for i := range ids {
		ids[i] = "x"
	}
	require.Contains(t, p.Refused(message.CodeResourceExhausted, message.OpObjectRelease, message.ReleaseObjects{IDs: ids}), "at most 4096")
	require.EqualValues(t, 1, fixture.LimitUse(t, s, "releases").Refused)
}

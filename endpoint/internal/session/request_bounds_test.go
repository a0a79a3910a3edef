package session_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Arguments in valid frames that exceed the bounds of a message are answered with code 3, and the connection continues.
func TestLimitsRequestArguments(t *testing.T) {
	drivertest.Leaks(t)
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "any", func(_ context.Context, in any) (bool, error) { return true, nil }))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r})
	p := fixture.PolitePeer(t, s.Socket())
	call := func(arguments []byte) wire.Frame {
		t.Helper()
		body, err := message.AppendCallRequest(nil, message.Request{Op: message.OpCall}, message.Call{Endpoint: "any", Args: arguments})
		require.NoError(t, err)
		p.ID++
		require.NoError(t, p.Conn.Send(wire.KindRequest, p.ID, body))
		frame, err := p.Conn.Receive()
		require.NoError(t, err)
		require.Equal(t, p.ID, frame.ID)
		return frame
	}
	pairs := []byte{0xba, 0, 1, 0, 1} // a map of 65,537 pairs
	for i := range 65537 {
		pairs = append(pairs, 0x1a, byte(i>>24), byte(i>>16), byte(i>>8), byte(i), 0)
	}
	for name, arguments := range map[string][]byte{
		"elements":   append([]byte{0x9a, 0, 0x10, 0, 1}, make([]byte, 1<<20+1)...),
		"pairs":      pairs,
		"levels":     append(bytes.Repeat([]byte{0x81}, 70), 0),
		"indefinite": {0x9f, 1, 0xff},
	} {
		frame := call(arguments)
		require.Equal(t, wire.KindError, frame.Kind, name)
		var e message.Error
		require.NoError(t, message.Unmarshal(frame.Body, &e))
		require.Equal(t, message.CodeSerialization, e.Code, "%s: %s", name, e.Message)
		require.Equal(t, wire.KindResponse, call([]byte{1}).Kind, "the connection goes on after %s", name)
	}
}

// A second watch of objects is refused while the first one exists; it ends like every watch.
func TestObjectWatchEnds(t *testing.T) {
	drivertest.Leaks(t)
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "object", func(_ context.Context, n int) (int, error) { return n, nil }, endpoint.Managed()))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r})
	p := fixture.PolitePeer(t, s.Socket())
	made := func(n int) string {
		t.Helper()
		frame, err := p.Send(message.OpCall, map[int]any{1: "object", 2: n})
		require.NoError(t, err)
		got, err := message.ParseReturned(frame.Body)
		require.NoError(t, err)
		return got.Object.ID
	}
	kind := func(op message.Op, body any) wire.Kind {
		t.Helper()
		frame, err := p.Send(op, body)
		require.NoError(t, err)
		require.Equal(t, p.ID, frame.ID)
		return frame.Kind
	}
	require.Equal(t, wire.KindResponse, kind(message.OpObjectWatch, message.WatchObjects{}))
	first := p.ID
	require.Equal(t, wire.KindError, kind(message.OpObjectWatch, message.WatchObjects{}))
	destroyObject(t, s, made(1))
	frame, err := p.Conn.Receive()
	require.NoError(t, err)
	require.Equal(t, wire.KindEvent, frame.Kind)
	require.Equal(t, first, frame.ID, "the first watch hears of it")
	require.Equal(t, wire.KindResponse, kind(message.OpUnwatch, message.Unwatch{Watch: first}))
	destroyObject(t, s, made(2))
	require.Equal(t, wire.KindResponse, kind(message.OpPing, message.Ping{}), "nothing is told any more")
	require.Equal(t, wire.KindResponse, kind(message.OpObjectWatch, message.WatchObjects{}), "another one can begin")
	again := p.ID
	destroyObject(t, s, made(3))
	frame, err = p.Conn.Receive()
	require.NoError(t, err)
	require.Equal(t, again, frame.ID)
}

func destroyObject(t testing.TB, s *endpoint.Server, id string) {
	t.Helper()
	_, err := s.Destroy(context.Background(), id)
	require.NoError(t, err)
}

package session_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"iter"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// next receives a frame, which must have the kind and the request's id, and decodes the message.
func next(p *fixture.Peer, kind wire.Kind, id uint64, into any) {
	p.T.Helper()
	frame, err := p.Conn.Receive()
	require.NoError(p.T, err)
	frame.Files.Close()
	require.Equal(p.T, kind, frame.Kind, "%q", frame.Body)
	require.Equal(p.T, id, frame.ID)
	if text, ok := into.(*string); ok {
		*text = hex.EncodeToString(frame.Body)
		return
	}
	require.NoError(p.T, message.Unmarshal(frame.Body, into))
}

// answered sends a request and returns the code of its error, 0 for a response.
func answered(p *fixture.Peer, op message.Op, body any, timeout time.Duration, files ...*os.File) message.Code {
	p.T.Helper()
	id := p.Begin(op, body, timeout, files...)
	frame, err := p.Conn.Receive()
	require.NoError(p.T, err)
	frame.Files.Close()
	require.Equal(p.T, id, frame.ID)
	if frame.Kind == wire.KindResponse {
		return 0
	}
	var e message.Error
	require.NoError(p.T, message.Unmarshal(frame.Body, &e))
	return e.Code
}

func TestProtocolSnapshotEvents(t *testing.T) {
	s := fixture.HostileOwner(t) // has version 1 of m
	p := fixture.PolitePeer(t, s.Socket())
	var body string
	watch := p.Begin(message.OpWatch, message.Watch{}, 0) // all names
	next(p, wire.KindResponse, watch, &body)
	require.Equal(t, "a0", body)
	next(p, wire.KindEvent, watch, &body)
	require.Equal(t, "a4"+"0100"+"0201"+"03616d"+"0401", body, "a bare event: sequence 0, published, m, version 1")

	in, file := fixture.Publication(t, true)
	publish := p.Begin(message.OpPublish, in, 0, file)
	kinds := map[wire.Kind]message.Event{}
	for range 2 { // the response and the event, in any order
		frame, err := p.Conn.Receive()
		require.NoError(t, err)
		var event message.Event
		if frame.Kind == wire.KindEvent {
			require.Equal(t, watch, frame.ID)
			require.NoError(t, message.Unmarshal(frame.Body, &event))
		} else {
			require.Equal(t, publish, frame.ID)
		}
		kinds[frame.Kind] = event
	}
	require.Positive(t, kinds[wire.KindEvent].Seq)
	require.Equal(t, "n", kinds[wire.KindEvent].Name)
	require.Zero(t, answered(p, message.OpUnwatch, message.Unwatch{Watch: watch}, 0))
	withdraw := p.Begin(message.OpWithdraw, message.Withdraw{Name: "n"}, 0)
	next(p, wire.KindResponse, withdraw, &body)
}

func TestProtocolLeaseEvents(t *testing.T) {
	s := fixture.HostileOwner(t)
	p := fixture.PolitePeer(t, s.Socket())
	var acquired message.Acquired
	any := p.Begin(message.OpAcquire, message.Acquire{Name: "m"}, 0)
	next(p, wire.KindResponse, any, &acquired)
	first := acquired.Lease
	certain := p.Begin(message.OpAcquire, message.Acquire{Name: "m", Version: 1}, 0)
	next(p, wire.KindResponse, certain, &acquired)
	var event message.Event
	next(p, wire.KindEvent, certain, &event)
	require.Equal(t, message.Event{Kind: message.EventPublished, Name: "m", Version: 1}, event, "who asks for a version is told the newest")
	require.Zero(t, answered(p, message.OpRelease, message.Release{Leases: []uint64{acquired.Lease}}, 0))

	other := fixture.PolitePeer(t, s.Socket())
	in, file := fixture.Publication(t, true)
	in.Name = "m"
	require.Zero(t, answered(other, message.OpPublish, in, 0, file))
	next(p, wire.KindEvent, any, &event)
	require.Positive(t, event.Seq)
	require.EqualValues(t, 2, event.Version)
	require.Zero(t, answered(p, message.OpRelease, message.Release{Leases: []uint64{first}}, 0), "and nothing of the lease that was released")
}

func TestProtocolPublish(t *testing.T) {
	s := fixture.HostileOwner(t)
	p := fixture.PolitePeer(t, s.Socket())
	for _, c := range []struct {
		name  string
		code  message.Code
		spoil func(in *message.Publish)
	}{
		{"as it is", 0, func(*message.Publish) {}},
		{"more bytes in the storage", message.CodeInvalidArgument, func(in *message.Publish) { in.Manifest.Storages[0].Bytes++ }},
		{"fewer bytes in the storage", message.CodeInvalidArgument, func(in *message.Publish) { in.Manifest.Storages[0].Bytes-- }},
		{"an odd offset", 0, func(in *message.Publish) { in.Manifest.Offsets[0] = 1 }},
		{"stride 0", 0, func(in *message.Publish) {
			in.Manifest.Strided, in.Manifest.Strides = make([]byte, 4), make([]byte, 8)
		}},
		{"a negative stride", message.CodeInvalidArgument, func(in *message.Publish) {
			in.Manifest.Strided, in.Manifest.Strides = make([]byte, 4), []byte{255, 255, 255, 255, 255, 255, 255, 255}
		}},
		{"digests of other bytes", 0, func(in *message.Publish) { in.Manifest.Digests = make([]byte, 32) }},
		{"half a digest", message.CodeInvalidArgument, func(in *message.Publish) { in.Manifest.Digests = make([]byte, 16) }},
		{"no name", message.CodeInvalidArgument, func(in *message.Publish) { in.Name = "" }},
		{"a name of 255 bytes", 0, func(in *message.Publish) { in.Name = strings.Repeat("n", 255) }},
		{"a name of 256 bytes", message.CodeInvalidArgument, func(in *message.Publish) { in.Name = strings.Repeat("n", 256) }},
		{"a name with a line break", message.CodeInvalidArgument, func(in *message.Publish) { in.Name = "a\nb" }},
	} {
		in, file := fixture.Publication(t, true)
		c.spoil(&in)
		require.Equal(t, c.code, answered(p, message.OpPublish, in, 0, file), c.name)
		if c.code == 0 {
			var acquired message.Acquired
			acquire := p.Begin(message.OpAcquire, message.Acquire{Name: in.Name}, 0)
			next(p, wire.KindResponse, acquire, &acquired)
			require.True(t, bytes.Equal(in.Manifest.Digests, acquired.Manifest.Digests), "%s: a publisher's claims reach readers as they are", c.name)
			require.Equal(t, acquired.Manifest.Storages[0].Bytes, acquired.Handles[0].Bytes)
			require.Zero(t, answered(p, message.OpRelease, message.Release{Leases: []uint64{acquired.Lease}}, 0))
			require.Zero(t, answered(p, message.OpWithdraw, message.Withdraw{Name: in.Name}, 0))
		}
	}
}

func TestProtocolAlignment(t *testing.T) {
	s := fixture.HostileOwner(t)
	p := fixture.PolitePeer(t, s.Socket())
	var acquired message.Acquired
	acquire := p.Begin(message.OpAcquire, message.Acquire{Name: "m"}, 0)
	next(p, wire.KindResponse, acquire, &acquired)
	require.NoError(t, acquired.Manifest.Rows(func(_ int, row *message.Tensor) { require.Zero(t, row.ByteOffset%64, row.Name) }))
}

// valueRegistry has functions that return their argument, and some for tasks and streams.
func valueRegistry(t *testing.T, step chan int) *endpoint.Registry {
	t.Helper()
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "int", same[int]))
	require.NoError(t, endpoint.Register(r, "uint8", same[uint8]))
	require.NoError(t, endpoint.Register(r, "float", same[float64]))
	require.NoError(t, endpoint.Register(r, "pointer", same[*int]))
	require.NoError(t, endpoint.Register(r, "text", same[string]))
	require.NoError(t, endpoint.Register(r, "bytes", same[[]byte]))
	require.NoError(t, endpoint.Register(r, "list", same[[]int]))
	require.NoError(t, endpoint.Register(r, "map", same[map[string]int]))
	require.NoError(t, endpoint.Register(r, "time", same[time.Time]))
	require.NoError(t, endpoint.Register(r, "duration", same[time.Duration]))
	require.NoError(t, endpoint.Register(r, "any", same[any]))
	require.NoError(t, endpoint.Register(r, "optional", same[struct {
		N *int `json:"n,omitempty"`
	}]))
	require.NoError(t, endpoint.Register(r, "steps", func(ctx context.Context, _ struct{}) (int, error) {
		for n := range step {
			task.Report(ctx, int64(n), 10, "")
		}
		return 7, nil
	}))
	require.NoError(t, endpoint.Register(r, "stuck", func(ctx context.Context, _ struct{}) (int, error) {
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}))
	require.NoError(t, endpoint.RegisterStream(r, "count", func(_ context.Context, to int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := 0; i < to && yield(i, nil); i++ {
			}
		}
	}))
	return r
}

func same[T any](_ context.Context, v T) (T, error) { return v, nil }

func TestProtocolValues(t *testing.T) {
	t.Parallel()
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard(), Registry: valueRegistry(t, nil)})
	p := fixture.PolitePeer(t, s.Socket())
	text := func(s string) string { return hex.EncodeToString(append([]byte{0x78, byte(len(s))}, s...)) }
	const refused = "3"
	for _, c := range []struct{ endpoint, in, out string }{
		{"int", "05", "05"}, // a single value
		{"text", "6161", "6161"},
		{"list", "820102", "820102"},
		{"map", "a1616101", "a1616101"},
		{"int", "1805", "05"}, // a long form
		{"int", "f94400", refused}, {"int", "fb4010000000000000", refused}, {"int", "f5", refused}, {"int", "6135", refused},
		{"int", "1bffffffffffffffff", refused}, {"int", "c24105", refused},
		{"uint8", "18ff", "18ff"}, {"uint8", "190100", refused}, {"uint8", "20", refused},
		{"float", "04", "f94400"}, {"float", "20", "f9bc00"}, {"float", "f94400", "f94400"},
		{"pointer", "f6", "f6"}, {"pointer", "05", "05"},
		{"text", "4161", refused}, {"bytes", "6161", refused}, {"bytes", "4161", "4161"},
		{"time", text("2026-11-22T01:02:03.5Z"), "76" + text("2026-11-22T01:02:03.5Z")[4:]},
		{"time", text("2026-11-22T01:02:03+05:00"), "74" + text("2026-11-21T20:02:03Z")[4:]},
		{"time", "05", "74" + text("1970-01-01T00:00:05Z")[4:]}, {"time", "6131", refused},
		{"duration", "1a3b9aca00", "1a3b9aca00"}, {"duration", text("1s"), refused},
		{"any", "a1616101", "a1616101"}, {"any", "a10101", refused}, {"any", "f6", "f6"}, {"any", "f7", "f6"}, {"any", "c24105", refused},
		{"optional", "", "a0"}, {"optional", "a0", "a0"}, {"optional", "a1616ef6", "a0"}, {"optional", "a1616e05", "a1616e05"},
		{"optional", "a1614e05", refused}, {"optional", "a10105", refused}, {"optional", "05", refused},
	} {
		args, err := hex.DecodeString(c.in)
		require.NoError(t, err)
		id := p.Begin(message.OpCall, message.Call{Endpoint: c.endpoint, Args: args}, 0)
		frame, err := p.Conn.Receive()
		require.NoError(t, err)
		require.Equal(t, id, frame.ID)
		if frame.Kind == wire.KindError {
			var e message.Error
			require.NoError(t, message.Unmarshal(frame.Body, &e))
			require.Equal(t, message.CodeSerialization, e.Code)
			require.Equal(t, c.out, refused, "%s of %s: %s", c.endpoint, c.in, e.Message)
			continue
		}
		var out message.Returned
		require.NoError(t, message.Unmarshal(frame.Body, &out))
		require.Equal(t, c.out, hex.EncodeToString(out.Value), "%s of %s", c.endpoint, c.in)
	}
}

func TestProtocolTimeout(t *testing.T) {
	t.Parallel()
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard(), Registry: valueRegistry(t, nil)})
	p := fixture.PolitePeer(t, s.Socket())
	call := message.Call{Endpoint: "int", Args: []byte{5}}
	require.Zero(t, answered(p, message.OpCall, call, 0), "none")
	require.Zero(t, answered(p, message.OpCall, call, time.Minute))
	require.Equal(t, message.CodeDeadlineExceeded, answered(p, message.OpCall, message.Call{Endpoint: "stuck"}, time.Millisecond))
	id := p.Begin(message.OpCall, message.Call{Endpoint: "stuck"}, 0)
	require.Zero(t, answered(p, message.OpPing, message.Ping{}, 0), "that one waits")
	require.NoError(t, p.Conn.Send(wire.KindCancel, id, []byte{0xa0}))
	var e message.Error
	next(p, wire.KindError, id, &e)
	require.Equal(t, message.CodeCanceled, e.Code)
}

func TestProtocolTaskWait(t *testing.T) {
	t.Parallel()
	step := make(chan int)
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard(), Registry: valueRegistry(t, step)})
	p := fixture.PolitePeer(t, s.Socket())
	var info message.TaskInfo
	next(p, wire.KindResponse, p.Begin(message.OpSubmit, message.Call{Endpoint: "steps"}, 0), &info)
	wait := func(after uint64) uint64 {
		return p.Begin(message.OpTaskWait, message.Task{ID: info.ID, After: after}, 0)
	}
	for info.State == "pending" {
		next(p, wire.KindResponse, wait(info.Seq), &info)
	}
	require.Equal(t, "running", info.State)
	require.Positive(t, info.StartedAt)
	require.Zero(t, info.FinishedAt, "has not come")

	seq := info.Seq
	end, later := wait(0), wait(seq)
	step <- 1
	next(p, wire.KindResponse, later, &info)
	require.Greater(t, info.Seq, seq)
	require.EqualValues(t, 1, info.Done)
	next(p, wire.KindResponse, wait(seq), &info) // an existing later change is answered at once
	require.Greater(t, info.Seq, seq)

	close(step)
	next(p, wire.KindResponse, end, &info)
	require.Equal(t, "completed", info.State)
	require.WithinDuration(t, time.Now(), time.Unix(0, info.FinishedAt), time.Minute, "nanoseconds since 1970")
	next(p, wire.KindResponse, wait(info.Seq+100), &info) // an ended task has no later change to wait for
	require.Equal(t, "completed", info.State)
}

func TestProtocolStreamMore(t *testing.T) {
	t.Parallel()
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard(), Registry: valueRegistry(t, nil)})
	p := fixture.PolitePeer(t, s.Socket())
	stream := p.Begin(message.OpStream, message.Call{Endpoint: "count", Args: []byte{17}}, 0)
	var body string
	for i := range 16 {
		next(p, wire.KindEvent, stream, &body)
		require.Equal(t, "a101"+hex.EncodeToString([]byte{byte(i)}), body, "a bare item")
	}
	more := p.Begin(message.OpStreamMore, message.StreamMore{Stream: stream, Items: 4}, 0)
	answers := map[uint64]string{}
	var order []wire.Kind
	for range 3 {
		frame, err := p.Conn.Receive()
		require.NoError(t, err)
		order = append(order, frame.Kind)
		answers[frame.ID] = hex.EncodeToString(frame.Body)
	}
	require.ElementsMatch(t, []wire.Kind{wire.KindResponse, wire.KindEvent, wire.KindResponse}, order)
	require.Equal(t, map[uint64]string{more: "a0", stream: "a0"}, answers, "the empty response of the stream is its end")
}

package client_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// hostileAnswer is a hostile answer to one request.
type hostileAnswer struct {
	name string
	ask  func(context.Context, *endpoint.Client) error // the client's request
	say  func(e *fixture.OwnerEnd, id uint64)
	is   error // the expected error of ask
	cut  bool  // the client must disconnect
}

// The requests to a hostile owner.
func askForValue(ctx context.Context, c *endpoint.Client) error {
	_, err := endpoint.Call[int](ctx, c, "value", 1)
	return err
}

func askForTensor(ctx context.Context, c *endpoint.Client) error {
	x, err := endpoint.Call[*tensor.Tensor](ctx, c, "tensor", 1)
	if err == nil {
		x.Close()
	}
	return err
}

func askForModel(ctx context.Context, c *endpoint.Client) error {
	h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	if err == nil {
		h.Close()
	}
	return err
}

func askForStream(ctx context.Context, c *endpoint.Client) error {
	for _, err := range endpoint.Stream[int](ctx, c, "items", 1) {
		if err != nil {
			return err
		}
		for c.ServerID() != "" && ctx.Err() == nil { // a slow reader
			time.Sleep(time.Millisecond)
		}
	}
	return errors.New("the end")
}

func askForTasks(ctx context.Context, c *endpoint.Client) error {
	for _, err := range c.WatchTasks(ctx, endpoint.TaskFilter{}) {
		if err != nil {
			return err
		}
	}
	return errors.New("the end")
}

func askForObjects(ctx context.Context, c *endpoint.Client) error {
	_, err := c.Objects(ctx)
	return err
}

func askForEvents(ctx context.Context, c *endpoint.Client) error {
	w, err := c.Watch(ctx)
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		e, err := fixture.NextEvent(ctx, w)
		if err != nil {
			return err
		}
		if e.Kind == endpoint.EventOwnerLost {
			return endpoint.ErrUnavailable
		}
	}
}

// bytes sends a frame with an arbitrary body.
func bytes(e *fixture.OwnerEnd, kind wire.Kind, id uint64, body []byte, files ...*os.File) {
	e.T.Helper()
	require.NoError(e.T, e.Send(kind, id, body, files...))
}

// head returns the header of a frame.
func head(length uint32, kind wire.Kind, files uint16, id byte) []byte {
	return []byte{byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length), 0, byte(kind), byte(files >> 8), byte(files), 0, 0, 0, 0, 0, 0, 0, id}
}

// smuggle sends bytes with descriptors that they do not announce.
func smuggle(e *fixture.OwnerEnd, b []byte, files ...*os.File) {
	e.T.Helper()
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	_, _, err := e.Raw.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	require.NoError(e.T, err)
}

// lend answers an acquire with a model damaged by spoil.
func lend(spoil func(got *message.Acquired, file **os.File)) func(*fixture.OwnerEnd, uint64) {
	return func(e *fixture.OwnerEnd, id uint64) {
		in, file := fixture.Publication(e.T.(*testing.T), true)
		got := message.Acquired{Lease: 7, Name: "m", Version: 1, Manifest: in.Manifest, Handles: in.Handles}
		spoil(&got, &file)
		body, err := message.MarshalPayload(got)
		require.NoError(e.T, err)
		bytes(e, wire.KindResponse, id, body, file)
	}
}

// give answers a call with a tensor damaged by spoil.
func give(spoil func(got *message.Returned)) func(*fixture.OwnerEnd, uint64) {
	return func(e *fixture.OwnerEnd, id uint64) {
		in, file := fixture.Publication(e.T.(*testing.T), true)
		got := message.Returned{Handles: in.Handles}
		// Tag 50001 of [handle 0, dtype 12, byte offset 0, shape [8], strides [1]].
		got.Value = message.RawMessage{0xd9, 0xc3, 0x51, 0x85, 0x00, 0x0c, 0x00, 0x81, 0x08, 0x81, 0x01}
		spoil(&got)
		body, err := message.MarshalPayload(got)
		require.NoError(e.T, err)
		bytes(e, wire.KindResponse, id, body, file)
	}
}

func hostileAnswers(t *testing.T) []hostileAnswer {
	protocol := endpoint.ErrProtocol
	empty, none := []byte{0xa0}, []byte{0xff}
	_, file := fixture.Publication(t, true)
	loose, err := os.CreateTemp("/dev/shm", "unsealed")
	require.NoError(t, err)
	t.Cleanup(func() { loose.Close(); os.Remove(loose.Name()) })
	require.NoError(t, loose.Truncate(4096))
	return []hostileAnswer{
		{"an answer to nothing", askForValue, func(e *fixture.OwnerEnd, _ uint64) { bytes(e, wire.KindResponse, 999, empty) }, protocol, true},
		{"an error about nothing", askForValue, func(e *fixture.OwnerEnd, _ uint64) { bytes(e, wire.KindError, 999, empty) }, protocol, true},
		{"two answers", askForEvents, func(e *fixture.OwnerEnd, id uint64) {
			bytes(e, wire.KindResponse, id, empty)
			bytes(e, wire.KindResponse, id, empty)
		}, endpoint.ErrUnavailable, true},
		{"a request", askForValue, func(e *fixture.OwnerEnd, _ uint64) { bytes(e, wire.KindRequest, 1, empty) }, protocol, true},
		{"a cancel", askForValue, func(e *fixture.OwnerEnd, id uint64) { bytes(e, wire.KindCancel, id, empty) }, protocol, true},
		{"a second hello", askForValue, func(e *fixture.OwnerEnd, _ uint64) { bytes(e, wire.KindHello, 0, empty) }, protocol, true},
		{"a kind that is none", askForValue, func(e *fixture.OwnerEnd, _ uint64) { smuggle(e, append(head(1, 99, 0, 1), 0xa0)) }, protocol, true},
		{"an error about the connection", askForValue, func(e *fixture.OwnerEnd, _ uint64) {
			e.SendFrame(wire.KindError, 0, message.Error{Code: message.CodeResourceExhausted, Message: "enough"})
		}, endpoint.ErrLimit, true},
		{"an error about the connection that is none", askForValue, func(e *fixture.OwnerEnd, _ uint64) { bytes(e, wire.KindError, 0, none) }, protocol, true},
		{"an error that is none", askForValue, func(e *fixture.OwnerEnd, id uint64) { bytes(e, wire.KindError, id, none) }, protocol, false},
		{"a result that is none", askForValue, func(e *fixture.OwnerEnd, id uint64) { bytes(e, wire.KindResponse, id, none) }, protocol, false},
		{"a result of another type", askForValue, func(e *fixture.OwnerEnd, id uint64) { bytes(e, wire.KindResponse, id, []byte{0x80}) }, protocol, false},
		{"a value that is none", askForValue, func(e *fixture.OwnerEnd, id uint64) { bytes(e, wire.KindResponse, id, []byte{0xa1, 0x01, 0xff}) }, protocol, false},
		{"the end within a frame", askForValue, func(e *fixture.OwnerEnd, _ uint64) {
			smuggle(e, append(head(100, wire.KindResponse, 0, 1), 0xa0))
			e.Raw.CloseWrite()
		}, endpoint.ErrUnavailable, true},
		{"a frame beyond the limit", askForValue, func(e *fixture.OwnerEnd, _ uint64) { smuggle(e, head(1<<31, wire.KindResponse, 0, 1)) }, protocol, true},

		{"descriptors that nobody announced", askForValue, func(e *fixture.OwnerEnd, id uint64) {
			smuggle(e, append(head(1, wire.KindResponse, 0, byte(id)), 0xa0), file, file)
		}, protocol, true},
		{"descriptors that do not come", askForValue, func(e *fixture.OwnerEnd, id uint64) {
			smuggle(e, append(head(1, wire.KindResponse, 2, byte(id)), 0xa0), file)
		}, protocol, true},
		{"descriptors of a frame that does not come", askForValue, func(e *fixture.OwnerEnd, id uint64) {
			smuggle(e, head(0, wire.KindFiles, 1, byte(id)), file)
			bytes(e, wire.KindResponse, id+1, empty)
		}, protocol, true},
		{"descriptors that nobody wants", askForEvents, func(e *fixture.OwnerEnd, id uint64) {
			bytes(e, wire.KindResponse, id, empty, file, file)
			bytes(e, wire.KindEvent, id, empty, file)
			bytes(e, wire.KindEvent, 999, empty, file)
			bytes(e, wire.KindGoodbye, 0, empty, file) // client and owner have nothing outstanding
		}, endpoint.ErrUnavailable, true},

		{"an event that is none", askForEvents, func(e *fixture.OwnerEnd, id uint64) {
			bytes(e, wire.KindResponse, id, empty)
			bytes(e, wire.KindEvent, id, none)
		}, endpoint.ErrUnavailable, true},
		{"an event of tasks that is none", askForTasks, func(e *fixture.OwnerEnd, id uint64) {
			bytes(e, wire.KindResponse, id, empty)
			bytes(e, wire.KindEvent, id, none)
		}, protocol, true},
		{"events of tasks that say nothing", askForTasks, func(e *fixture.OwnerEnd, id uint64) {
			bytes(e, wire.KindResponse, id, empty)
			for _, body := range [][]byte{empty, {0xa1, 0x01, 0x01}, {0xa1, 0x01, 0x18, 0x63}, {0xa2, 0x01, 0x02, 0x02, 0xa0}} {
				bytes(e, wire.KindEvent, id, body)
			}
			bytes(e, wire.KindEvent, id, none)
		}, protocol, true},
		{"a list of objects that goes back", askForObjects, func(e *fixture.OwnerEnd, id uint64) {
			e.SendFrame(wire.KindResponse, id, message.ObjectsListed{Objects: []message.ObjectInfo{{ID: "a"}}, Next: 5})
			id, _ = e.Request()
			e.SendFrame(wire.KindResponse, id, message.ObjectsListed{Objects: []message.ObjectInfo{{ID: "a"}}, Next: 5})
		}, protocol, false},
		{"a list of objects without objects", askForObjects, func(e *fixture.OwnerEnd, id uint64) {
			e.SendFrame(wire.KindResponse, id, message.ObjectsListed{Objects: []message.ObjectInfo{}, Next: 5})
		}, protocol, false},
		{"news of an object that is none", func(ctx context.Context, c *endpoint.Client) error {
			_, err := endpoint.CallManaged[int](ctx, c, "object", 1)
			return err
		}, func(e *fixture.OwnerEnd, watch uint64) {
			e.NextRequest(message.OpCall, nil)
			bytes(e, wire.KindEvent, watch, none)
		}, protocol, true},
		{"more of a stream than it may send", askForStream, func(e *fixture.OwnerEnd, id uint64) {
			for range 3 * message.StreamWindow {
				if e.Send(wire.KindEvent, id, []byte{0xa1, 0x01, 0x01}) != nil {
					return // the client has disconnected
				}
			}
		}, protocol, true},
		{"an item that is none", askForStream, func(e *fixture.OwnerEnd, id uint64) { bytes(e, wire.KindEvent, id, none) }, protocol, false},

		{"a manifest cut short", askForModel, lend(func(got *message.Acquired, _ **os.File) { got.Manifest.Dims = got.Manifest.Dims[:4] }), protocol, false},
		{"a manifest of more tensors than it has", askForModel, lend(func(got *message.Acquired, _ **os.File) {
			got.Manifest.NameLengths = append(got.Manifest.NameLengths, 0, 0, 0, 0)
		}), protocol, false},
		{"a manifest without its storage", askForModel, lend(func(got *message.Acquired, _ **os.File) { got.Manifest.Storages = nil }), protocol, false},
		{"a tensor beyond the memory", askForModel, lend(func(got *message.Acquired, _ **os.File) { got.Manifest.Dims[3] = 1 }), protocol, false},
		{"no such data type", askForModel, lend(func(got *message.Acquired, _ **os.File) { got.Manifest.DTypes[0] = 250 }), protocol, false},
		{"more bytes than the memory has", askForModel, lend(func(got *message.Acquired, _ **os.File) {
			got.Handles[0].Bytes, got.Manifest.Storages[0].Bytes = 1<<40, 1<<40
		}), protocol, false},
		{"an offset behind the end", askForModel, lend(func(got *message.Acquired, _ **os.File) { got.Handles[0].Offset = 1 << 40 }), protocol, false},
		{"a descriptor that did not come", askForModel, lend(func(got *message.Acquired, _ **os.File) { got.Handles[0].File = 3 }), protocol, false},
		{"one descriptor twice", askForModel, lend(func(got *message.Acquired, _ **os.File) {
			got.Handles = append(got.Handles, got.Handles[0])
			got.Manifest.Storages = append(got.Manifest.Storages, got.Manifest.Storages[0])
		}), protocol, false},
		{"no handle", askForModel, lend(func(got *message.Acquired, _ **os.File) { got.Handles = nil }), protocol, false},
		{"memory that can shrink", askForModel, lend(func(_ *message.Acquired, f **os.File) { *f = loose }), protocol, false},
		{"memory of a device that is not here", askForModel, lend(func(got *message.Acquired, _ **os.File) { got.Handles[0].Device[3] ^= 1 }), errors.ErrUnsupported, false},
		{"memory of a kind that is not known", askForModel, lend(func(got *message.Acquired, _ **os.File) { got.Handles[0].Kind = "tape" }), errors.ErrUnsupported, false},
		{"none of it", askForModel, lend(func(*message.Acquired, **os.File) {}), nil, false},

		{"a tensor of no memory", askForTensor, give(func(got *message.Returned) { got.Handles = nil }), protocol, false},
		{"a tensor of a descriptor that did not come", askForTensor, give(func(got *message.Returned) { got.Handles[0].File = 1 }), protocol, false},
		{"a result of more bytes than its memory has", askForTensor, give(func(got *message.Returned) { got.Handles[0].Bytes = 1 << 40 }), protocol, false},
		{"a tensor outside of its memory", askForTensor, give(func(got *message.Returned) { got.Value[6] = 0x17; got.Value[8] = 0x17; got.Handles[0].Bytes = 16 }), tensor.ErrBounds, false},
		{"a tensor as it should be", askForTensor, give(func(*message.Returned) {}), nil, false},
	}
}

// Owners send invalid answers. The client returns an error, keeps nothing of theirs, and continues on the connection or
// on one to the next owner.
func TestHostileOwner(t *testing.T) {
	fixture.HostOnly(t, "forges descriptors of host memory")
	for _, row := range hostileAnswers(t) {
		t.Run(row.name, func(t *testing.T) {
			drivertest.Leaks(t)
			dev, err := host.Open()
			require.NoError(t, err)
			t.Cleanup(func() { dev.Close() })
			o := fixture.NewFakeOwner(t)
			c, end := o.Connected("hostile", driver.Device(dev))
			ctx, cancel := context.WithTimeout(context.Background(), fixture.WaitLimit)
			defer cancel()
			asked := make(chan error, 1)
			go func() { asked <- row.ask(ctx, c) }()
			id, _ := end.Request()
			row.say(end, id)
			err = <-asked
			if row.is == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, row.is)
			}
			if row.cut {
				end.WaitEnd()
				proctest.Eventually(t, fixture.WaitLimit, "the client knows", func() bool { return c.ServerID() == "" })
				pinged := make(chan error, 1)
				go func() { _, err := c.Ping(context.Background()); pinged <- err }()
				end = o.Greet("good")
				end.SendFrame(wire.KindResponse, end.NextRequest(message.OpPing, nil), message.Pong{})
				require.NoError(t, <-pinged)
				return
			}
			pinged := make(chan error, 1)
			go func() { _, err := c.Ping(context.Background()); pinged <- err }()
			for { // releases and cancels arrive first
				frame := end.NextFrame()
				request, err := message.ParseRequest(frame.Body)
				if frame.Kind == wire.KindRequest && request.Op == message.OpPing {
					require.NoError(t, err)
					end.SendFrame(wire.KindResponse, frame.ID, message.Pong{})
					break
				}
			}
			require.NoError(t, <-pinged)
		})
	}
}

func TestHostileOwnerHello(t *testing.T) {
	_, file := fixture.Publication(t, true)
	for _, row := range []struct {
		name string
		say  func(e *fixture.OwnerEnd)
		is   error
	}{
		{"no hello", func(e *fixture.OwnerEnd) { bytes(e, wire.KindResponse, 1, []byte{0xa0}) }, endpoint.ErrProtocol},
		{"a hello that is none", func(e *fixture.OwnerEnd) { bytes(e, wire.KindHello, 0, []byte{0xff}) }, endpoint.ErrProtocol},
		{"a hello of nothing", func(e *fixture.OwnerEnd) { bytes(e, wire.KindHello, 0, []byte{0xa0}) }, endpoint.ErrProtocol},
		{"a hello with descriptors", func(e *fixture.OwnerEnd) { bytes(e, wire.KindHello, 0, []byte{0xa0}, file) }, endpoint.ErrProtocol},
		{"a hello of another version", func(e *fixture.OwnerEnd) { e.SendFrame(wire.KindHello, 0, message.Hello{Protocol: 900, Oldest: 900}) }, endpoint.ErrProtocol},
		{"an error", func(e *fixture.OwnerEnd) {
			e.SendFrame(wire.KindError, 0, message.Error{Code: message.CodePermissionDenied})
		}, endpoint.ErrPermission},
		{"an error that is none", func(e *fixture.OwnerEnd) { bytes(e, wire.KindError, 0, []byte{0xff}) }, endpoint.ErrProtocol},
		{"the end", func(e *fixture.OwnerEnd) { e.Close() }, endpoint.ErrUnavailable},
	} {
		t.Run(row.name, func(t *testing.T) {
			drivertest.Leaks(t)
			o := fixture.NewFakeOwner(t)
			dialled := make(chan error, 1)
			go func() {
				c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: o.Socket, Logger: fixture.Discard()})
				if err == nil {
					c.Close()
				}
				dialled <- err
			}()
			end := o.Accept()
			row.say(end)
			require.ErrorIs(t, <-dialled, row.is)
		})
	}
}

// next returns the next event of a watcher.
func next(t testing.TB, w *endpoint.Watcher) endpoint.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), fixture.WaitLimit)
	defer cancel()
	e, err := fixture.NextEvent(ctx, w)
	require.NoError(t, err)
	return e
}

// pings checks that the connection works.
func pings(t testing.TB, c *endpoint.Client, end *fixture.OwnerEnd) {
	t.Helper()
	pinged := make(chan error, 1)
	go func() { _, err := c.Ping(context.Background()); pinged <- err }()
	end.SendFrame(wire.KindResponse, end.NextRequest(message.OpPing, nil), message.Pong{})
	require.NoError(t, <-pinged)
}

package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

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

// slabPeer connects as a client that returns memory of results.
func slabPeer(t *testing.T, s *endpoint.Server) *fixture.Peer {
	t.Helper()
	p := fixture.RawPeer(t, s.Socket())
	_, err := message.ClientHandshake(p.Conn, message.Hello{Features: []string{message.FeaturePool}})
	require.NoError(t, err)
	return p
}

// pageFrame calls "fill" and returns the handle of the result, and its descriptor if there is one.
func pageFrame(p *fixture.Peer, in message.Call, value uint8) (message.Handle, *os.File) {
	p.T.Helper()
	args, err := message.Marshal(map[string]any{"Bytes": 1 << 16, "Value": value})
	require.NoError(p.T, err)
	in.Endpoint, in.Args = "fill", args
	frame, err := p.Send(message.OpCall, in)
	require.NoError(p.T, err)
	defer frame.Files.Close()
	require.Equal(p.T, wire.KindResponse, frame.Kind, string(frame.Body))
	got, err := message.ParseReturned(frame.Body)
	require.NoError(p.T, err)
	require.Len(p.T, got.Handles, 1)
	return got.Handles[0], frame.Files.Take(int(got.Handles[0].File))
}

// A peer returns slabs that it did not receive, slabs of others, and all slabs twice, and writes to its own. Only the
// peer is affected.
func TestSlabUnknown(t *testing.T) {
	requirePool(t)
	drivertest.Leaks(t)
	s, o, c := slabFixture(t, endpoint.Limits{})
	honest := page(t, c, "fill", 1<<16, 42) // slab 1 of its own session
	p := slabPeer(t, s)
	for _, numbers := range [][]uint64{{1}, {0}, {1 << 63}, {7, 7, 7}} {
		p.Refused(message.CodeInvalidArgument, message.OpReturnSlabs, message.ReturnSlabs{Returned: numbers})
		p.Refused(message.CodeInvalidArgument, message.OpReturnSlabs, message.ReturnSlabs{Dropped: numbers})
		ran := o.runs.Load()
		p.Refused(message.CodeInvalidArgument, message.OpCall, message.Call{Endpoint: "fill", SlabsReturned: numbers})
		require.Equal(t, ran, o.runs.Load(), "it does not run")
	}
	require.NoError(t, isAll(honest, 42))

	h, f := pageFrame(p, message.Call{}, 5)
	require.EqualValues(t, 1, h.Slab)
	require.EqualValues(t, 1<<16, h.SlabBytes)
	defer f.Close()
	_, err := unix.Mmap(int(f.Fd()), 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EPERM, "nobody but the owner writes it")
	_, err = f.WriteAt([]byte{1}, 0)
	require.ErrorIs(t, err, unix.EPERM)
	again, err := os.OpenFile(fmt.Sprint("/proc/self/fd/", f.Fd()), os.O_RDWR, 0)
	require.NoError(t, err)
	defer again.Close()
	_, err = unix.Mmap(int(again.Fd()), 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EPERM)

	seen, err := unix.Mmap(int(f.Fd()), 0, 1<<16, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	defer unix.Munmap(seen)
	h, f2 := pageFrame(p, message.Call{SlabsReturned: []uint64{1}}, 6)
	require.Nil(t, f2)
	require.Equal(t, message.Handle{Kind: h.Kind, Device: h.Device, Bytes: 1 << 16, File: -1, Slab: 1}, h)
	require.EqualValues(t, 6, seen[0], "its own memory")
	h, f2 = pageFrame(p, message.Call{}, 7)
	require.EqualValues(t, 2, h.Slab, "the first was not given back")
	f2.Close()
	p.Refused(message.CodeInvalidArgument, message.OpReturnSlabs, message.ReturnSlabs{Returned: []uint64{1, 1, 2}})
	require.EqualValues(t, 6, seen[0])
	h, _ = pageFrame(p, message.Call{}, 8)
	require.Contains(t, []uint64{1, 2}, h.Slab, "those that it had were taken back")
	p.Refused(message.CodeInvalidArgument, message.OpReturnSlabs, message.ReturnSlabs{Returned: []uint64{h.Slab}, Dropped: []uint64{h.Slab}})

	require.NoError(t, isAll(honest, 42))
	require.NoError(t, page(t, c, "fill", 1<<16, 1).Close())
	require.NoError(t, isAll(honest, 42))
	require.NoError(t, honest.Close())
}

// A peer without support for slabs gets separate memory with each result.
func TestSlabUnsupportedByClient(t *testing.T) {
	fixture.HostOnly(t, "memory of other devices is not used again")
	drivertest.Leaks(t)
	s, _, _ := slabFixture(t, endpoint.Limits{})
	p := fixture.PolitePeer(t, s.Socket())
	for i := range uint8(3) {
		h, f := pageFrame(p, message.Call{}, i)
		require.Zero(t, h.Slab)
		require.Zero(t, h.SlabBytes)
		require.NotNil(t, f)
		f.Close()
	}
	require.Zero(t, slabsOf(t, s))
}

// An owner sends invalid slab numbers. The client refuses them, keeps its memory, and leaks nothing.
func TestSlabHostileOwner(t *testing.T) {
	requirePool(t)
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	memory := func(bytes int64) *os.File {
		mem, err := dev.Alloc(bytes)
		require.NoError(t, err)
		h, err := mem.Export()
		require.NoError(t, errors.Join(err, mem.Close()))
		return h.File
	}
	handle := message.Handle{Kind: "memfd", Device: message.UUID(dev.Info().UUID), Bytes: 100, Slab: 1, SlabBytes: 4096}
	with := func(change func(*message.Handle)) message.Handle {
		h := handle
		change(&h)
		return h
	}
	for name, handles := range map[string][]message.Handle{
		"a number that was not sent":   {with(func(h *message.Handle) { h.File, h.SlabBytes = -1, 0 })},
		"more than the slab":           {with(func(h *message.Handle) { h.Bytes = 5000 })},
		"a slab larger than its memfd": {with(func(h *message.Handle) { h.SlabBytes = 1 << 40 })},
		"no size":                      {with(func(h *message.Handle) { h.SlabBytes = 0 })},
		"another device":               {with(func(h *message.Handle) { h.Device[3]++ })},
		"the same twice":               {handle, with(func(h *message.Handle) { h.File = 1 })},
		"the same by its number":       {handle, with(func(h *message.Handle) { h.File, h.SlabBytes = -1, 0 })},
	} {
		t.Run(name, func(t *testing.T) {
			drivertest.Leaks(t)
			o := fixture.NewFakeOwner(t)
			dialled := o.Dial(endpoint.ClientOptions{Devices: []driver.Device{dev}})
			end := o.Accept()
			_, err := message.ServerHandshake(end.Conn, message.Hello{Server: "one", Features: []string{message.FeaturePool}}, nil)
			require.NoError(t, err)
			c := <-dialled
			defer c.Close()
			answered := make(chan error, 1)
			go func() {
				x, err := endpoint.Call[*tensor.Tensor](context.Background(), c, "fill", 1)
				if err == nil {
					x.Close()
				}
				answered <- err
			}()
			id := end.NextRequest(message.OpCall, nil)
			ref, err := message.MarshalTagged(message.TagTensor, message.TensorRef{DType: uint8(tensor.Uint8), Shape: []int64{100}})
			require.NoError(t, err)
			body, err := message.MarshalPayload(message.Returned{Value: ref, Handles: handles})
			require.NoError(t, err)
			var files []*os.File
			for _, h := range handles {
				if h.File >= 0 {
					files = append(files, memory(4096))
				}
			}
			require.NoError(t, end.Send(wire.KindResponse, id, body, files...))
			for _, f := range files {
				f.Close()
			}
			require.Error(t, <-answered)
			end.SendFrame(wire.KindEvent, 0, message.SlabsGone{Slabs: []uint64{1, 2, 3, 1}})
			require.NoError(t, end.Send(wire.KindEvent, 0, []byte{0xff}))
			end.WaitEnd()
		})
	}
}

// Clients die repeatedly while they hold results: their memory returns to the device only.
func TestSlabOfKilledClients(t *testing.T) {
	requirePool(t)
	drivertest.Leaks(t)
	s, _, c := slabFixture(t, endpoint.Limits{})
	held := page(t, c, "fill", 1<<16, 99)
	before := drivertest.OpenFiles()
	for range 10 {
		child := fixture.Client(t, s.Socket())
		pagesOf(child, 7, pageIn{1 << 16, 3})
		require.EqualValues(t, 1+4, slabsOf(t, s))
		child.Kill()
		proctest.Eventually(t, fixture.WaitLimit, "its slabs are back", func() bool { return slabsOf(t, s) == 1 })
		other := fixture.SocketClient(t, s)
		got := page(t, other, "dirty", 1<<16, 0)
		require.NoError(t, isAll(got, 0), "nobody else gets them")
		require.NoError(t, errors.Join(got.Close(), other.Close()))
		proctest.Eventually(t, fixture.WaitLimit, "the client has gone", func() bool { return slabsOf(t, s) == 1 })
	}
	proctest.Eventually(t, fixture.WaitLimit, "descriptors are back", func() bool { return drivertest.OpenFiles() <= before })
	require.NoError(t, isAll(held, 99))
	require.NoError(t, held.Close())
}

// Results of a killed owner stay valid.
func TestSlabOfKilledOwner(t *testing.T) {
	fixture.HostOnly(t, "memory of other devices is not used again")
	drivertest.Leaks(t)
	socket := proctest.SocketPath(t)
	o := fixture.Start(t)
	servePages(o, socket)
	dev, err := host.Open()
	require.NoError(t, err)
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, page(t, c, "fill", 1<<16, 1).Close())
	held := page(t, c, "fill", 1<<16, 2)
	o.Kill()
	require.NoError(t, isAll(held, 2))
	view, err := held.Narrow(0, 10, 10)
	require.NoError(t, err)
	part := view.Alias()
	require.NoError(t, held.Close())
	require.NoError(t, isAll(part, 2))
	require.NoError(t, part.Close())
}

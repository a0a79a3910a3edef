package endpoint_test

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// peer is a client that can send invalid data.
type peer struct {
	t    *testing.T
	conn *wire.Conn
	id   uint64
}

// rawPeer connects without a hello.
func rawPeer(t *testing.T, socket string) *peer {
	t.Helper()
	c, err := net.Dial("unix", socket)
	require.NoError(t, err)
	conn, err := wire.NewConn(c.(*net.UnixConn), wire.Limits{Frame: 128 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	conn.SetReadDeadline(time.Now().Add(waitLimit))
	return &peer{t: t, conn: conn}
}

// politePeer connects with a hello.
func politePeer(t *testing.T, socket string) *peer {
	t.Helper()
	p := rawPeer(t, socket)
	_, err := message.ClientHandshake(p.conn, message.Hello{})
	require.NoError(t, err)
	p.conn.SetReadDeadline(time.Now().Add(waitLimit))
	return p
}

// send sends a request and returns the answer.
func (p *peer) send(op message.Op, body any, files ...*os.File) (wire.Frame, error) {
	p.t.Helper()
	encoded, err := message.Marshal(body)
	require.NoError(p.t, err)
	request, err := message.Marshal(message.Request{Op: op, Body: encoded})
	require.NoError(p.t, err)
	p.id++
	require.NoError(p.t, p.conn.Send(wire.KindRequest, p.id, request, files...))
	p.conn.SetReadDeadline(time.Now().Add(time.Minute))
	return p.conn.Receive()
}

// refused sends a request that must be answered with an error of the code.
func (p *peer) refused(code message.Code, op message.Op, body any, files ...*os.File) string {
	p.t.Helper()
	frame, err := p.send(op, body, files...)
	require.NoError(p.t, err)
	require.Equal(p.t, wire.KindError, frame.Kind)
	var e message.Error
	require.NoError(p.t, message.Unmarshal(frame.Body, &e))
	require.Equal(p.t, code, e.Code, e.Message)
	return e.Message
}

// hungUp checks that the owner ends the connection with a reason. Answers to earlier requests may arrive before.
func (p *peer) hungUp(says string) {
	p.t.Helper()
	frame, err := p.conn.Receive()
	require.NoError(p.t, err)
	require.Equal(p.t, wire.KindError, frame.Kind)
	require.Zero(p.t, frame.ID)
	var e message.Error
	require.NoError(p.t, message.Unmarshal(frame.Body, &e))
	require.Equal(p.t, message.CodeProtocol, e.Code)
	require.Contains(p.t, e.Message, says)
	for err == nil {
		frame, err = p.conn.Receive()
		require.True(p.t, err != nil || frame.ID != 0, "%s frame after the last word", frame.Kind)
	}
}

// hostileOwner returns an owner in this process with one model, which must be unchanged when the test ends.
func hostileOwner(t *testing.T) *endpoint.Server {
	t.Helper()
	return hostileOwnerWith(t, endpoint.Limits{Wire: wire.Limits{Frame: 1 << 20}})
}

// hostileOwnerWith is hostileOwner with limits.
func hostileOwnerWith(t *testing.T, limits endpoint.Limits) *endpoint.Server {
	t.Helper()
	hostOnly(t, "forges descriptors of host memory")
	drivertest.Leaks(t)
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	s := serve(t, endpoint.ServerOptions{Logger: discard(), Limits: limits})
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 2, Bytes: 1 << 12, Seed: 1})
	require.NoError(t, err)
	publishOn(t, s, "m", sd)
	files, maps := drivertest.OpenFiles(), drivertest.SharedMappings()
	t.Cleanup(func() {
		require.Len(t, listOf(s), 1)
		require.Eventually(t, func() bool {
			return len(listOf(s)[0].Versions[0].Holders) == 0 && drivertest.SharedMappings() == maps && drivertest.OpenFiles() <= files+1
		}, waitLimit, tick, "descriptors or mappings are left")
	})
	t.Cleanup(func() {
		c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true, Devices: []driver.Device{dev}})
		require.NoError(t, err, "the owner goes on")
		h, err := c.Acquire(context.Background(), "m", endpoint.AcquireOptions{})
		require.NoError(t, err)
		require.NoError(t, h.Close())
		require.NoError(t, c.Close())
	})
	return s
}

func TestHostileFrames(t *testing.T) {
	s := hostileOwner(t)
	empty := []byte{0xa0}
	for _, c := range []struct {
		name string
		say  func(p *peer)
		says string
	}{
		{"a response", func(p *peer) { p.conn.Send(wire.KindResponse, 1, empty) }, "does not send response frames"},
		{"a second hello", func(p *peer) { p.conn.Send(wire.KindHello, 0, empty) }, "does not send hello frames"},
		{"a request that is none", func(p *peer) { p.conn.Send(wire.KindRequest, 1, []byte{0x01}) }, "request 1"},
		{"nested arrays", func(p *peer) { p.conn.Send(wire.KindRequest, 1, []byte(strings.Repeat("\x81", 1000)+"\x00")) }, "request 1"},
		{"an indefinite length", func(p *peer) { p.conn.Send(wire.KindRequest, 1, []byte{0xbf, 0xff}) }, "request 1"},
		{"two items", func(p *peer) { p.conn.Send(wire.KindRequest, 1, []byte{0xa1, 0x01, 0x01, 0xa0}) }, "request 1"},
		{"a frame beyond the limit", func(p *peer) { p.conn.Send(wire.KindRequest, 1, make([]byte, 2<<20)) }, "limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := politePeer(t, s.Socket())
			c.say(p)
			p.hungUp(c.says)
		})
	}
}

func TestHostileRequestBeforeHello(t *testing.T) {
	s := hostileOwner(t)
	p := rawPeer(t, s.Socket())
	require.NoError(t, p.conn.Send(wire.KindRequest, 1, []byte{0xa1, 0x01, 0x01}))
	p.hungUp("not a hello")
}

func TestSessionProtocolVersion(t *testing.T) {
	s := hostileOwner(t)
	p := rawPeer(t, s.Socket())
	_, err := message.ClientHandshake(p.conn, message.Hello{Protocol: 900, Oldest: 900})
	require.ErrorContains(t, err, "versions")
}

func TestHostileRequests(t *testing.T) {
	s := hostileOwner(t)
	p := politePeer(t, s.Socket())
	require.Contains(t, p.refused(message.CodeUnsupported, 0x9999, struct{}{}), "does not support")
	p.refused(message.CodeSerialization, message.OpAcquire, []int{1})
	p.refused(message.CodeNotFound, message.OpAcquire, message.Acquire{Name: "other"})
	p.refused(message.CodeNotFound, message.OpAcquire, message.Acquire{Name: "m", Version: 77})
	p.refused(message.CodeNotFound, message.OpRelease, message.Release{Leases: []uint64{99}})
	p.refused(message.CodeNotFound, message.OpWithdraw, message.Withdraw{Name: "other"})
	p.refused(message.CodeNotFound, message.OpUnwatch, message.Unwatch{Watch: 5})
	p.refused(message.CodeInvalidArgument, message.OpWatch, message.Watch{Names: []string{"\x00"}})
	p.refused(message.CodeResourceExhausted, message.OpWatch, message.Watch{Names: make([]string, 5000)})
	p.refused(message.CodeNotFound, message.OpInfo, message.Info{Name: "m", Version: 12, Manifest: true})
}

func TestHostileReleaseOfOthersLeases(t *testing.T) {
	s := hostileOwner(t)
	holder, thief := politePeer(t, s.Socket()), politePeer(t, s.Socket())
	frame, err := holder.send(message.OpAcquire, message.Acquire{Name: "m"})
	require.NoError(t, err)
	frame.Files.Close()
	var got message.Acquired
	require.NoError(t, message.Unmarshal(frame.Body, &got))
	thief.refused(message.CodePermissionDenied, message.OpRelease, message.Release{Leases: []uint64{got.Lease}})
	require.Len(t, listOf(s)[0].Versions[0].Holders, 1)
	holder.conn.Close()
}

// offer returns a valid publication for a test to damage.
func offer(t *testing.T, frozen bool) (message.Publish, *os.File) {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	mem, err := dev.Alloc(4096)
	require.NoError(t, err)
	if frozen {
		require.NoError(t, mem.Freeze())
	}
	h, err := mem.Export()
	require.NoError(t, err)
	require.NoError(t, mem.Close())
	t.Cleanup(func() { h.Close() })
	uuid := message.UUID(dev.Info().UUID)
	m, err := message.NewManifest([]message.Tensor{{Name: "w", DType: 12, Shape: []int64{8}}},
		[]message.Storage{{Bytes: 4096, Device: uuid, Type: 1}}, nil)
	require.NoError(t, err)
	return message.Publish{
		Name: "n", Manifest: *m, Handles: []message.Handle{{Kind: "memfd", Device: uuid, Bytes: 4096, File: 0}},
	}, h.File
}

func TestHostilePublications(t *testing.T) {
	s := hostileOwner(t)
	loose, err := os.CreateTemp("/dev/shm", "unsealed")
	require.NoError(t, err)
	t.Cleanup(func() { loose.Close(); os.Remove(loose.Name()) })
	require.NoError(t, loose.Truncate(4096))
	plain, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	t.Cleanup(func() { plain.Close() })

	for _, c := range []struct {
		name  string
		code  message.Code
		spoil func(in *message.Publish, file **os.File)
	}{
		{"more bytes than the memory has", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) {
			in.Handles[0].Bytes, in.Manifest.Storages[0].Bytes = 1<<20, 1<<20
		}},
		{"an offset behind the end", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) { in.Handles[0].Offset = 1 << 40 }},
		{"a size beyond 63 bits", message.CodeProtocol, func(in *message.Publish, _ **os.File) { in.Handles[0].Bytes = 1 << 63 }},
		{"a manifest of another size", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) { in.Manifest.Storages[0].Bytes = 64 }},
		{"another device", message.CodeCapability, func(in *message.Publish, _ **os.File) { in.Handles[0].Device[3] ^= 1 }},
		{"another kind", message.CodeCapability, func(in *message.Publish, _ **os.File) { in.Handles[0].Kind = "tape" }},
		{"no descriptor", message.CodeProtocol, func(in *message.Publish, _ **os.File) { in.Handles[0].File = -1 }},
		{"a descriptor that did not come", message.CodeProtocol, func(in *message.Publish, _ **os.File) { in.Handles[0].File = 3 }},
		{"one descriptor twice", message.CodeProtocol, func(in *message.Publish, _ **os.File) { in.Handles = append(in.Handles, in.Handles[0]) }},
		{"no handle", message.CodeProtocol, func(in *message.Publish, _ **os.File) { in.Handles = nil }},
		{"memory that can shrink", message.CodeInvalidArgument, func(_ *message.Publish, f **os.File) { *f = loose }},
		{"a file", message.CodeInvalidArgument, func(_ *message.Publish, f **os.File) { *f = plain }},
		{"a tensor beyond the memory", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) { in.Manifest.Dims[3] = 1 }},
		{"no such data type", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) { in.Manifest.DTypes[0] = 250 }},
		{"columns that do not agree", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) { in.Manifest.Ranks[0] = 2 }},
		{"an empty tensor name", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) {
			in.Manifest.Names, in.Manifest.NameLengths = "", make([]byte, 4)
		}},
		{"a bad name", message.CodeInvalidArgument, func(in *message.Publish, _ **os.File) { in.Name = "" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, file := offer(t, true)
			c.spoil(&in, &file)
			message := politePeer(t, s.Socket()).refused(c.code, message.OpPublish, in, file)
			require.NotEmpty(t, message)
		})
	}
	t.Run("memory that can still be mapped writable", func(t *testing.T) {
		in, file := offer(t, false)
		message := politePeer(t, s.Socket()).refused(message.CodePermissionDenied, message.OpPublish, in, file)
		require.Contains(t, message, "seal")
	})
	t.Run("none of it", func(t *testing.T) {
		in, file := offer(t, true)
		p := politePeer(t, s.Socket())
		frame, err := p.send(message.OpPublish, in, file)
		require.NoError(t, err)
		require.Equal(t, wire.KindResponse, frame.Kind, "%q", frame.Body)
		require.NoError(t, s.Withdraw(context.Background(), "n"))
	})
}

func TestHostileExtraDescriptors(t *testing.T) {
	s := hostileOwner(t)
	_, file := offer(t, true)
	p := politePeer(t, s.Socket())
	for _, op := range []message.Op{message.OpPing, message.OpList, 0x9999} {
		_, err := p.send(op, struct{}{}, file, file, file)
		require.NoError(t, err)
	}
	p.conn.Close()
}

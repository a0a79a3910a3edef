package server_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"syscall"
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
	"github.com/sharedtensor/sharedtensor/endpoint/internal/server"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Answers to clients that do not read are limited for each and for all, and are freed with the client.
func TestLimitsAnswers(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	const size = 1 << 20
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "large", func(context.Context, int) ([]byte, error) { return make([]byte, size), nil }))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Logger: fixture.Discard(), Limits: endpoint.Limits{AnswerBytes: 3 * size, AnswerBytesTotal: 12 * size}})
	p := fixture.PolitePeer(t, s.Socket())
	const asked = 40
	for i := range asked {
		p.Ask(message.OpCall, message.Call{Endpoint: "large", Args: message.RawMessage{byte(i % 24)}})
	}
	proctest.Eventually(t, fixture.WaitLimit, "most are refused", func() bool { return fixture.LimitUse(t, s, "answer_bytes").Refused >= asked-4 })
	use := fixture.LimitUse(t, s, "answer_bytes")
	require.LessOrEqual(t, use.Used, int64(3*size))
	require.Positive(t, use.Used)
	require.EqualValues(t, 12*size, use.All)
	codes := map[message.Code]int{}
	for range asked {
		f, err := p.Conn.Receive()
		require.NoError(t, err)
		var e message.Error
		if f.Kind == wire.KindError {
			require.NoError(t, message.Unmarshal(f.Body, &e))
		}
		codes[e.Code]++
	}
	require.Equal(t, asked, codes[0]+codes[message.CodeResourceExhausted])
	require.Positive(t, codes[0])
	proctest.Eventually(t, fixture.WaitLimit, "what was read does not count", func() bool { return fixture.LimitUse(t, s, "answer_bytes").Used == 0 })
	id := p.Ask(message.OpCall, message.Call{Endpoint: "large", Args: message.RawMessage{1}})
	require.Zero(t, p.AnswerTo(id), "there is room again")
}

// An unread manifest costs the same for many clients as for one.
func TestServerManifestMemory(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard()})
	many, err := module.Synthesize(dev, module.Synthetic{Tensors: 20000, Bytes: 1 << 20})
	require.NoError(t, err)
	fixture.PublishOn(t, s, "m", many)
	before := fixture.HeapInUse()
	var peers []*fixture.Peer
	for range 16 {
		p := fixture.PolitePeer(t, s.Socket())
		peers = append(peers, p)
		p.Ask(message.OpInfo, message.Info{Name: "m", Manifest: true})
	}
	time.Sleep(50 * time.Millisecond) // until all of them are stuck
	require.Less(t, fixture.HeapInUse()-before, int64(4<<20), "a manifest has more than a MiB")
	for _, p := range peers {
		require.Zero(t, p.AnswerTo(1))
	}
}

// manyTensors returns a publication of n tensors of one page.
func manyTensors(t testing.TB, n int) (message.Publish, *os.File) {
	t.Helper()
	tt, ok := t.(*testing.T)
	require.True(t, ok)
	in, file := fixture.Publication(tt, true)
	rows := make([]message.Tensor, n)
	for i := range rows {
		rows[i] = message.Tensor{Name: fmt.Sprintf("layers.%d.weight", i), DType: 12, Shape: []int64{int64(1 + i%8), 1}, ByteOffset: int64(i%16) * 64}
	}
	m, err := message.NewManifest(rows, in.Manifest.Storages, nil)
	require.NoError(t, err)
	in.Manifest = *m
	return in, file
}

// The memory of manifests is counted, is at most what is charged, and does not outlive the limit.
func TestLimitsManifests(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	in, file := manyTensors(t, 50000)
	cost := server.ManifestCost(&in.Manifest)
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard(), Limits: endpoint.Limits{
		Publish: endpoint.PublishLimits{ManifestBytes: 2 * cost}, PublishTotal: endpoint.PublishLimits{ManifestBytes: 3 * cost},
	}})
	before := fixture.HeapInUse()
	p := fixture.PolitePeer(t, s.Socket())
	for i := range 2 {
		in.Name = fmt.Sprint(i)
		f, err := p.Send(message.OpPublish, in, file)
		require.NoError(t, err)
		require.Equal(t, wire.KindResponse, f.Kind)
	}
	kept := (fixture.HeapInUse() - before) / 2
	t.Logf("a manifest of 50,000 tensors is charged %d bytes and takes %d", cost, kept)
	require.Less(t, kept, cost, "what is charged is what it takes at least")
	in.Name = "more"
	require.Contains(t, p.Refused(message.CodeResourceExhausted, message.OpPublish, in, file), "manifests of this client")
	p.Conn.Close()
	other := fixture.PolitePeer(t, s.Socket())
	_, err := other.Send(message.OpPublish, in, file)
	require.NoError(t, err)
	in.Name = "most"
	require.Contains(t, other.Refused(message.CodeResourceExhausted, message.OpPublish, in, file), "manifests of clients",
		"what a client has published that has gone counts")
	require.EqualValues(t, 3*cost, fixture.LimitUse(t, s, "manifest_bytes").Used)
	require.EqualValues(t, 2, fixture.LimitUse(t, s, "manifest_bytes").Refused)
	require.NoError(t, s.Withdraw(context.Background(), "0"))
	proctest.Eventually(t, fixture.WaitLimit, "what is withdrawn does not count", func() bool { return fixture.LimitUse(t, s, "manifest_bytes").Used == 2*cost })
}

// Different views of the same bytes are distinguished without comparing all pairs, which would take minutes.
func TestServerPublishOverlappingTensors(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	in, file := fixture.Publication(t, true)
	rows := make([]message.Tensor, 100000)
	for i := range rows { // strides of single elements are free, so there are any number of layouts
		rows[i] = message.Tensor{Name: fmt.Sprint(i), DType: 12, Shape: []int64{1, 2}, Strides: []int64{int64(i), 2}}
	}
	m, err := message.NewManifest(rows, in.Manifest.Storages, nil)
	require.NoError(t, err)
	in.Manifest = *m
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard()})
	p := fixture.PolitePeer(t, s.Socket())
	f, err := p.Send(message.OpPublish, in, file)
	require.NoError(t, err)
	require.Equal(t, wire.KindResponse, f.Kind)
}

// The list can be read with any number of versions and holders.
func TestClientListPages(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	dev := fixture.Device(t)
	s := fixture.Serve(t, endpoint.ServerOptions{Logger: fixture.Discard(), Retain: endpoint.Retention{Versions: 100}, Limits: endpoint.Limits{Wire: wire.Limits{Frame: 16 << 10}}})
	c, _ := publisher(t, s, dev)
	ctx := context.Background()
	for v := range 30 {
		for _, name := range []string{"a", "b"} {
			sd := scattered(t, dev, 1)
			_, err := c.Publish(ctx, name, sd, endpoint.PublishOptions{Source: strings.Repeat("s", 2000)})
			require.NoError(t, err)
			require.NoError(t, sd.Close())
		}
		_ = v
	}
	list, err := c.List(ctx)
	require.NoError(t, err)
	require.Equal(t, fixture.ListOf(s), list)
	require.Len(t, list, 2)
	for _, m := range list {
		require.Len(t, m.Versions, 30)
		require.EqualValues(t, 30, m.Current)
		for i, v := range m.Versions {
			require.EqualValues(t, 30-i, v.Version)
			require.Len(t, v.Source, 1024)
		}
	}
	info, err := c.Info(ctx, "a")
	require.NoError(t, err)
	require.NotEmpty(t, info.Versions)
	require.EqualValues(t, 30, info.Current)
	for range 200 { // more holders of one version than an answer has room for
		fixture.PolitePeer(t, s.Socket()).Ask(message.OpAcquire, message.Acquire{Name: "b"})
	}
	proctest.Eventually(t, fixture.WaitLimit, "all hold it", func() bool {
		list, err := c.List(ctx)
		require.NoError(t, err)
		v := list[1].Versions[0]
		return v.Sessions == 200 && len(v.Holders) < 200 && len(list[1].Versions) == 30
	})
}

// The claimed size of a descriptor counts, even for a sparse file.
func TestLimitsSparsePublication(t *testing.T) {
	fixture.HostOnly(t, "makes a memfd")
	s := fixture.HostileOwner(t)
	const huge = 1 << 40
	fd, err := unix.MemfdCreate("sparse", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	file := os.NewFile(uintptr(fd), "sparse")
	t.Cleanup(func() { file.Close() })
	require.NoError(t, file.Truncate(huge))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE)
	require.NoError(t, err)
	in, _ := fixture.Publication(t, true)
	p := fixture.PolitePeer(t, s.Socket())
	require.Contains(t, p.Refused(message.CodeResourceExhausted, message.OpPublish, in, file), "bytes published", "also what its handles do not speak of")
	in.Handles[0].Bytes, in.Manifest.Storages[0].Bytes = huge, huge
	require.Contains(t, p.Refused(message.CodeResourceExhausted, message.OpPublish, in, file), "bytes published")
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	require.Equal(t, dev.Info().TotalBytes, fixture.LimitUse(t, s, "storage_bytes").Client)
}

// Views that repeat one element may have any size; sums saturate.
func TestServerInfoSumsSaturate(t *testing.T) {
	s := fixture.HostileOwner(t)
	in, file := fixture.Publication(t, true)
	var rows []message.Tensor
	for i := range 4 { // of 2^62 bytes each: the sum would be 0
		rows = append(rows, message.Tensor{Name: fmt.Sprint(i), DType: 12, Shape: []int64{1 << 60}, Strides: []int64{0}, ByteOffset: int64(i) * 64})
	}
	m, err := message.NewManifest(rows, in.Manifest.Storages, nil)
	require.NoError(t, err)
	in.Manifest = *m
	p := fixture.PolitePeer(t, s.Socket())
	f, err := p.Send(message.OpPublish, in, file)
	require.NoError(t, err)
	require.Equal(t, wire.KindResponse, f.Kind)
	sizes := map[string]int64{}
	for _, model := range fixture.ListOf(s) {
		sizes[model.Name] = model.Versions[0].Bytes
	}
	require.EqualValues(t, math.MaxInt64, sizes["n"])
	require.NoError(t, s.Withdraw(context.Background(), "n"))
}

// A client with unfinished frames holds at most its share of descriptors, for at most the time of a frame, and others
// can publish.
func TestLimitsDescriptors(t *testing.T) {
	s := fixture.HostileOwnerWith(t, endpoint.Limits{Descriptors: 300, Wire: wire.Limits{FrameTimeout: time.Second}})
	in, file := fixture.Publication(t, true)
	greedy := rawSocket(t, s.Socket())
	for range 10 { // files frames of a frame that never arrives
		if !greedy.sendFiles(file, 100) {
			break
		}
	}
	proctest.Eventually(t, fixture.WaitLimit, "they are counted, or given up", func() bool {
		use := fixture.LimitUse(t, s, "descriptors")
		return use.Refused > 0 && use.Used <= 200
	})
	p := fixture.PolitePeer(t, s.Socket())
	answer, err := p.Send(message.OpPublish, in, file)
	require.NoError(t, err)
	require.Equal(t, wire.KindResponse, answer.Kind)
	require.NoError(t, s.Withdraw(context.Background(), "n"))
	proctest.Eventually(t, fixture.WaitLimit, "it is cut off", func() bool { return greedy.ended() })
	proctest.Eventually(t, fixture.WaitLimit, "nothing is pinned", func() bool { return fixture.LimitUse(t, s, "descriptors").Used == 0 })

	files := make([]*os.File, 250)
	for i := range files {
		files[i] = file
	}
	p.Refused(message.CodeResourceExhausted, message.OpPublish, in, files...) // the connection continues
	answer, err = p.Send(message.OpPublish, in, file)
	require.NoError(t, err)
	require.Equal(t, wire.KindResponse, answer.Kind)
	require.NoError(t, s.Withdraw(context.Background(), "n"))
}

// Partly received requests count too.
func TestLimitsRequestBytesTotal(t *testing.T) {
	s := fixture.HostileOwnerWith(t, endpoint.Limits{RequestBytesTotal: 3 << 20, Wire: wire.Limits{FrameTimeout: 2 * time.Second}})
	var stuck []*rawConn
	for range 4 {
		c := rawSocket(t, s.Socket())
		c.beginFrame(8<<20, 6<<20)
		stuck = append(stuck, c)
	}
	proctest.Eventually(t, fixture.WaitLimit, "some found no room", func() bool {
		use := fixture.LimitUse(t, s, "request_bytes")
		return use.Refused >= 2 && use.Used <= 3<<20
	})
	p := fixture.PolitePeer(t, s.Socket())
	_, err := p.Send(message.OpPing, message.Ping{})
	require.NoError(t, err)
	proctest.Eventually(t, fixture.WaitLimit, "they are cut off", func() bool {
		for _, c := range stuck {
			if !c.ended() {
				return false
			}
		}
		return true
	})
	proctest.Eventually(t, fixture.WaitLimit, "nothing is held", func() bool { return fixture.LimitUse(t, s, "request_bytes").Used == 0 })
}

// A request over the limit is refused, and the connection continues.
func TestLimitsRequests(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "wait", func(ctx context.Context, _ int) (int, error) { <-ctx.Done(); return 0, ctx.Err() }))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Logger: fixture.Discard(), Limits: endpoint.Limits{Requests: 3}})
	p := fixture.PolitePeer(t, s.Socket())
	for i := range 3 {
		p.Ask(message.OpCall, message.Call{Endpoint: "wait", Args: message.RawMessage{byte(i)}})
	}
	require.Equal(t, message.CodeResourceExhausted, p.AnswerTo(p.Ask(message.OpCall, message.Call{Endpoint: "wait", Args: message.RawMessage{9}})))
	use := fixture.LimitUse(t, s, "requests")
	require.EqualValues(t, 3, use.Most)
	require.EqualValues(t, 1, use.Refused)
	require.Zero(t, p.AnswerTo(p.Ask(message.OpPing, message.Ping{})))
}

// The server's limit applies to every timeout that the client sends.
func TestLimitsRequestTime(t *testing.T) {
	fixture.HostOnly(t, "the device makes no difference to it")
	drivertest.Leaks(t)
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "wait", func(ctx context.Context, _ int) (int, error) {
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}))
	s := fixture.Serve(t, endpoint.ServerOptions{Registry: r, Logger: fixture.Discard(), Limits: endpoint.Limits{RequestTime: 50 * time.Millisecond}})
	p := fixture.PolitePeer(t, s.Socket())
	require.Equal(t, message.CodeDeadlineExceeded, p.AnswerTo(p.Ask(message.OpCall, message.Call{Endpoint: "wait", Args: message.RawMessage{1}})))
	require.EqualValues(t, 1, fixture.LimitUse(t, s, "request_seconds").Refused)
}

// smallDevice is host memory with a limited size.
type smallDevice struct {
	*host.Device
	driver.Reclaim
	mu   sync.Mutex
	left int64
}

// rawConn is a connection on which the test writes bytes.
type rawConn struct {
	t  *testing.T
	fd int
}

// rawSocket connects with a hello.
func rawSocket(t *testing.T, path string) *rawConn {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Connect(fd, &unix.SockaddrUnix{Name: path}))
	c := &rawConn{t, fd}
	body, err := message.Marshal(message.Hello{Protocol: 1, Oldest: 1})
	require.NoError(t, err)
	c.write(append(frameHead(len(body), wire.KindHello, 0, 0), body...), nil)
	_, err = unix.Read(fd, make([]byte, 64<<10))
	require.NoError(t, err)
	return c
}

// frameHead returns the header of a frame.
func frameHead(length int, kind wire.Kind, files int, id uint64) []byte {
	return []byte{
		byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length), 0, byte(kind), byte(files >> 8), byte(files),
		0, 0, 0, 0, 0, 0, 0, byte(id),
	}
}

func (c *rawConn) write(b, control []byte) bool {
	for len(b) > 0 {
		n, err := unix.SendmsgN(c.fd, b, control, nil, unix.MSG_NOSIGNAL)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return false
		}
		b, control = b[n:], nil
	}
	return true
}

// sendFiles sends a files frame with n duplicates of a descriptor.
func (c *rawConn) sendFiles(f *os.File, n int) bool {
	fds := make([]int, n)
	raw, err := f.SyscallConn()
	require.NoError(c.t, err)
	require.NoError(c.t, raw.Control(func(fd uintptr) {
		for i := range fds {
			fds[i] = int(fd)
		}
	}))
	return c.write(frameHead(0, wire.KindFiles, n, 1), unix.UnixRights(fds...))
}

// beginFrame announces a request and sends part of it.
func (c *rawConn) beginFrame(length, part int) {
	c.write(append(frameHead(length, wire.KindRequest, 0, 1), make([]byte, part)...), nil)
}

// ended reports whether the peer has closed, or announces why it will.
func (c *rawConn) ended() bool {
	n, err := unix.Read(c.fd, make([]byte, 4096))
	return n == 0 || err == syscall.ECONNRESET
}

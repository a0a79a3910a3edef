package stream_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// keepSink keeps the received sets.
type keepSink struct {
	mu   sync.Mutex
	sets []*stream.Set
	fail error
}

func (k *keepSink) Receive(_ context.Context, set *stream.Set) (uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail != nil {
		set.Close()
		return 0, k.fail
	}
	k.sets = append(k.sets, set)
	return uint64(len(k.sets)), nil
}

func (k *keepSink) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.sets {
		s.Close()
	}
	k.sets = nil
}

// setSource serves one set.
type setSource struct{ set *stream.Set }

func (s setSource) Set(_ context.Context, r stream.Request) (*stream.Set, error) {
	if r.Name != s.set.Name {
		return nil, fmt.Errorf("%w: %q", stream.ErrNotFound, r.Name)
	}
	return &stream.Set{ID: s.set.ID, Name: s.set.Name, Version: s.set.Version, Tensors: s.set.Tensors.Alias()}, nil
}

func (s setSource) Tensor(_ context.Context, index int, _ map[string]string) (*stream.Item, error) {
	names := s.set.Tensors.Names()
	if index >= len(names) {
		return nil, fmt.Errorf("%w: tensor %d", stream.ErrNotFound, index)
	}
	t, _ := s.set.Tensors.Get(names[index])
	return &stream.Item{ID: names[index], Tensor: t.Alias(), Metadata: map[string]string{"name": names[index]}}, nil
}

// serve runs a server on a free port.
func serve(t testing.TB, opts stream.ServerOptions) (*stream.Server, string) {
	t.Helper()
	if opts.Device == nil {
		opts.Device = remotetest.OpenHost(t)
	}
	server, err := stream.NewServer(opts)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(append(server.GRPCOptions(), grpc.WaitForHandlers(true))...)
	server.Register(s)
	go s.Serve(l)
	t.Cleanup(func() {
		s.Stop() // waits for the handlers
		server.Close()
		require.Zero(t, server.PendingBytes(), "what transfers held was given back")
	})
	return server, l.Addr().String()
}

func dial(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, append(bulk.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func newClient(t testing.TB, address string, dev *host.Device) *stream.Client {
	return stream.NewClient(dial(t, address), stream.ClientOptions{Device: dev})
}

// fill sets the bytes of a tensor to values that depend on their position.
func fill(t testing.TB, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	raw, err := tensor.RawData(x)
	require.NoError(t, err)
	for i := range raw {
		raw[i] = byte(i*7 + i>>9)
	}
	return x
}

// makeSet returns a set with a large tensor, a strided one, an empty one, and one of each type.
func makeSet(t testing.TB, dev *host.Device, name string, large int64) *stream.Set {
	t.Helper()
	sd := module.NewStateDict()
	t.Cleanup(func() { sd.Close() })
	add := func(name string, dtype tensor.DType, shape ...int64) *tensor.Tensor {
		x, err := tensor.Zeros(dev, dtype, shape)
		require.NoError(t, err)
		return fill(t, x)
	}
	require.NoError(t, sd.Set("large", add("large", tensor.Uint8, large)))
	square := add("square", tensor.Float32, 300, 700)
	defer square.Close()
	transposed, err := square.Transpose(0, 1)
	require.NoError(t, err)
	require.NoError(t, sd.Set("transposed", transposed))
	require.NoError(t, sd.Set("empty", add("empty", tensor.Int64, 0, 3)))
	for _, dtype := range tensor.DTypes() {
		require.NoError(t, sd.Set(dtype.String(), add("", dtype, 4, 33)))
	}
	return &stream.Set{Name: name, Tensors: sd}
}

func requireEqualSets(t testing.TB, want, got *module.StateDict) {
	t.Helper()
	require.Equal(t, want.Names(), got.Names())
	for name, a := range want.All() {
		b, _ := got.Get(name)
		equal, err := a.Equal(b)
		require.NoError(t, err)
		require.True(t, equal, "%s", name)
	}
}

// memfds returns the number of memory file descriptors of this process.
func memfds(t testing.TB) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		if target, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.HasPrefix(target, "/memfd:") {
			n++
		}
	}
	return n
}

// requireMemfds waits until exactly want descriptors remain.
func requireMemfds(t testing.TB, want int) {
	t.Helper()
	require.Eventually(t, func() bool {
		runtime.GC() // the transport leaves some buffers of a broken connection to the collector
		return memfds(t) <= want
	}, 10*time.Second, 10*time.Millisecond, "no more than %d descriptors of memory", want)
}

// cutter is a proxy that cuts connections after a number of bytes.
type cutter struct {
	address string
	up      bool // count bytes to the server, otherwise from the server

	mu    sync.Mutex
	cuts  []int64 // for the next connections; later ones are not cut
	conns []net.Conn
}

// cut cuts all open connections.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
}

func newCutter(t testing.TB, target string, up bool, cuts ...int64) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	c := &cutter{address: l.Addr().String(), up: up, cuts: cuts}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go c.pass(client, target)
		}
	}()
	return c
}

func (c *cutter) pass(client net.Conn, target string) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	c.mu.Lock()
	c.conns = append(c.conns, client, server)
	limit := int64(1) << 62
	if len(c.cuts) > 0 {
		limit, c.cuts = c.cuts[0], c.cuts[1:]
	}
	c.mu.Unlock()
	counted, free := io.Reader(client), io.Reader(server)
	to, from := io.Writer(server), io.Writer(client)
	if !c.up {
		counted, free, to, from = server, client, client, server
	}
	go io.Copy(from, free)
	io.CopyN(to, counted, limit)
}

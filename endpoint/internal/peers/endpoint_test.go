package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

// ours is package endpoint. The functions have no cache, so equal calls run again, as with the other peers.
func ours(name string, limits wire.Limits) peer {
	return peer{
		name: name, serve: func(socket string) (io.Closer, error) { return serveOurs(socket, limits) },
		dial: func(socket string, _ int) (client, error) { return dialOurs(socket, limits) },
	}
}

func serveOurs(socket string, limits wire.Limits) (io.Closer, error) {
	r := endpoint.NewRegistry()
	err := errors.Join(
		endpoint.Register(r, "echo", func(_ context.Context, in echoed) (echoed, error) { return in, nil }),
		endpoint.Register(r, "send", func(_ context.Context, in *tensor.Tensor) (uint64, error) {
			data, err := tensor.Data[uint8](in)
			if err != nil {
				return 0, err
			}
			return sign(data), nil
		}),
		endpoint.Register(r, "fill", fill), endpoint.Register(r, "cached", fill, endpoint.Cached()),
	)
	if err != nil {
		return nil, err
	}
	dev, err := hostDevice()
	if err != nil {
		return nil, err
	}
	s, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: socket, Devices: []driver.Device{dev}, Registry: r, Limits: endpoint.Limits{Wire: limits},
	})
	if err == nil {
		go s.Serve(context.Background())
	}
	return s, err
}

type oursClient struct{ *endpoint.Client }

func dialOurs(socket string, limits wire.Limits) (client, error) {
	dev, err := hostDevice()
	if err != nil {
		return nil, err
	}
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Limits: limits})
	return oursClient{c}, err
}

func (c oursClient) echo(ctx context.Context, data []byte) ([]byte, error) {
	out, err := endpoint.Call[echoed](ctx, c.Client, "echo", echoed{Data: data})
	return out.Data, err
}

func (c oursClient) send(ctx context.Context, arg argument) (uint64, error) {
	return endpoint.Call[uint64](ctx, c.Client, "send", arg.tensor)
}

// connectOurs starts an owner and connects n clients to it.
func connectOurs(b *testing.B, n int) []*endpoint.Client {
	socket := ""
	first, _ := connect(b, peer{name: "endpoint", dial: func(s string, _ int) (client, error) {
		socket = s
		return dialOurs(s, wire.Limits{})
	}}, 1)
	list := []*endpoint.Client{first.(oursClient).Client}
	for len(list) < n {
		c, err := dialOurs(socket, wire.Limits{})
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, c.Close()) })
		list = append(list, c.(oursClient).Client)
	}
	return list
}

// fillIn requests a tensor of bytes that are all Value.
type fillIn struct {
	Bytes  int64
	Value  uint8
	Memory string // one of the constants below
}

// The kinds of memory of a result.
const (
	reused  = "reused"
	fresh   = "fresh"
	touched = "touched" // reused, and only the first and the last byte are written
	private = "private" // of the owner: the result has no tensor
	cached  = "cached"  // the same memory in each result
)

// filled is a tensor and the time for which it was filled.
type filled struct {
	Tensor *tensor.Tensor
	Took   time.Duration
}

// hostDevice returns the host device, which stays open.
var hostDevice = sync.OnceValues(func() (*host.Device, error) { return host.Open() })

// privateBytes is memory of the owner that is not sent.
var privateBytes = sync.OnceValue(func() []byte { return make([]byte, 64<<20) })

func fill(ctx context.Context, in fillIn) (out filled, err error) {
	if in.Memory == private {
		data := privateBytes()[:in.Bytes]
		out.Took, _ = timed(func() error {
			fillBytes(data, in.Value)
			return nil
		})
		return out, nil
	}
	own, err := hostDevice()
	if err != nil {
		return out, err
	}
	dev := driver.Device(own)
	if in.Memory != fresh {
		dev = endpoint.ResultDevice(ctx, dev)
	}
	if out.Tensor, err = tensor.Empty(dev, tensor.Uint8, tensor.Shape{in.Bytes}); err != nil {
		return out, err
	}
	data, err := tensor.Data[uint8](out.Tensor)
	out.Took, _ = timed(func() error {
		if in.Memory == touched {
			data[0], data[len(data)-1] = in.Value, in.Value
		} else {
			fillBytes(data, in.Value)
		}
		return nil
	})
	return out, err
}

// fillBytes sets all bytes to a value by copying from a block that stays in the first-level cache, because Go's
// compiler emits a memset for zeros only. The block is aligned: copying from unaligned memory takes twice as long.
func fillBytes(data []byte, value byte) {
	var piece struct {
		_     [0]uint64
		bytes [8 << 10]byte
	}
	for i := range piece.bytes {
		piece.bytes[i] = value
	}
	for len(data) > 0 {
		data = data[copy(data, piece.bytes[:]):]
	}
}

// BenchmarkResult requests filled tensors, in reused memory, in fresh memory, and as a loaned sample of iceoryx2. It
// reports the duration without the fill, which measures the transport, beside the whole duration. A fill of some size
// takes longer than both sides poll, and replaces what the processor's caches hold. Two cases separate that from the cost
// of the memory: the same fill of memory that is not sent, and a result with only two written bytes.
func BenchmarkResult(b *testing.B) {
	for _, size := range []int64{1 << 10, 1 << 20, 8 << 20, 64 << 20} {
		for _, memory := range []string{reused, fresh, touched, private, cached} {
			b.Run(fmt.Sprintf("bytes=%d/peer=%s", size, memory), func(b *testing.B) { benchmarkResult(b, size, memory) })
		}
		b.Run(fmt.Sprintf("bytes=%d/peer=iceoryx2", size), func(b *testing.B) { benchmarkIceoryx(b, "results", fmt.Sprint(size)) })
	}
}

func benchmarkResult(b *testing.B, size int64, memory string) {
	c := connectOurs(b, 1)[0]
	var fills, whole time.Duration
	measure(b, nil, func(i int) (time.Duration, error) {
		start := time.Now()
		name, in := "fill", fillIn{Bytes: size, Value: uint8(i), Memory: memory}
		if memory == cached {
			name, in.Value = "cached", 1
		}
		out, err := endpoint.Call[filled](b.Context(), c, name, in)
		if err != nil {
			return 0, err
		}
		if memory == cached {
			out.Took = 0 // of the first call
		}
		if memory != private {
			var data []uint8
			data, err = tensor.Data[uint8](out.Tensor)
			if err == nil && (data[0] != in.Value || data[size-1] != in.Value) {
				err = errors.New("received the wrong tensor")
			}
			err = errors.Join(err, out.Tensor.Close())
		}
		took := time.Since(start)
		fills, whole = fills+out.Took, whole+took
		return took - out.Took, err
	})
	b.ReportMetric(100*float64(fills)/float64(whole), "fill-%")
}

// BenchmarkAttach attaches a model that the owner holds.
func BenchmarkAttach(b *testing.B) {
	for _, tensors := range []int{1, 1000} {
		b.Run(fmt.Sprintf("tensors=%d", tensors), func(b *testing.B) {
			c := connectOurs(b, 1)[0]
			dev, err := hostDevice()
			require.NoError(b, err)
			specs := make([]module.NamedSpec, tensors)
			for i := range specs {
				specs[i] = module.NamedSpec{Name: fmt.Sprintf("layers.%d.weight", i), DType: tensor.Float32, Shape: tensor.Shape{16, 16}}
			}
			sd, err := module.New(dev, specs)
			require.NoError(b, err)
			_, err = c.Publish(b.Context(), "m", sd, endpoint.PublishOptions{})
			require.NoError(b, errors.Join(err, sd.Close()))
			for b.Loop() {
				h, err := c.Acquire(b.Context(), "m", endpoint.AcquireOptions{})
				require.NoError(b, err)
				require.NoError(b, h.Close())
			}
		})
	}
}

// publish publishes one tensor with the given value in all bytes, or only in the first and the last.
func publish(b *testing.B, c *endpoint.Client, dev driver.Device, size int64, value uint8, written bool) {
	sd, err := module.Empty(dev, []module.NamedSpec{{Name: "w", DType: tensor.Uint8, Shape: tensor.Shape{size}}})
	require.NoError(b, err)
	x, _ := sd.Get("w")
	data, err := tensor.Data[uint8](x)
	require.NoError(b, err)
	data[0], data[len(data)-1] = value, value
	if written {
		fillBytes(data, value)
	}
	_, err = c.Publish(b.Context(), "m", sd, endpoint.PublishOptions{})
	require.NoError(b, errors.Join(err, sd.Close()))
}

// BenchmarkPublish publishes versions of 64 MiB in sequence.
func BenchmarkPublish(b *testing.B) {
	for _, written := range []bool{false, true} {
		for _, memory := range []string{"pool", "fresh"} {
			b.Run(fmt.Sprintf("written=%v/memory=%s", written, memory), func(b *testing.B) {
				c := connectOurs(b, 1)[0]
				fresh, err := hostDevice()
				require.NoError(b, err)
				dev := driver.Device(fresh)
				if memory == "pool" {
					pool := host.NewPool(fresh, host.PoolOptions{})
					defer pool.Close()
					dev = pool
				}
				for i := 0; b.Loop(); i++ {
					publish(b, c, dev, 64<<20, uint8(i), written)
				}
			})
		}
	}
}

// BenchmarkSwitch measures the time from a publication until each of 100 clients has acquired and read the version.
func BenchmarkSwitch(b *testing.B) {
	clients := connectOurs(b, 101)
	publisher, watchers := clients[0], clients[1:]
	dev, err := hostDevice()
	require.NoError(b, err)
	ctx, stop := context.WithCancel(b.Context())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	arrivals := make(chan time.Time, len(watchers))
	publish(b, publisher, dev, 1<<20, 0, false)
	for _, c := range watchers {
		w, err := c.Watch(ctx, "m")
		require.NoError(b, err)
		watching.Go(func() {
			defer w.Close()
			for e, err := range w.Events(ctx) {
				if err == nil && e.Kind == endpoint.EventPublished {
					err = readVersion(ctx, c)
				}
				if ctx.Err() != nil {
					return
				} else if err != nil {
					b.Error(err)
				}
				arrivals <- time.Now()
			}
		})
	}
	for range watchers {
		<-arrivals // of the first version
	}
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		publish(b, publisher, dev, 1<<20, uint8(i), false)
		for range watchers {
			took = append(took, (<-arrivals).Sub(start))
		}
	}
	reportQuantiles(b, took)
}

func readVersion(ctx context.Context, c *endpoint.Client) error {
	h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
	if err != nil {
		return err
	}
	x, _ := h.StateDict().Get("w")
	data, err := tensor.Data[uint8](x)
	if err == nil && data[0] != data[len(data)-1] {
		err = errors.New("a version contains bytes of another")
	}
	return errors.Join(err, h.Close())
}

// BenchmarkClients makes small calls from many clients at once, each with a separate connection.
func BenchmarkClients(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprintf("clients=%d", n), func(b *testing.B) {
			clients := connectOurs(b, n)
			var wait sync.WaitGroup
			b.ResetTimer()
			for i, c := range clients {
				wait.Go(func() {
					for range b.N/n + min(1, max(0, b.N%n-i)) {
						if err := smallCall(b.Context(), oursClient{c}); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wait.Wait()
		})
	}
}

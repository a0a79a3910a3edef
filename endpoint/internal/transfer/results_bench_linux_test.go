package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// The functions of BenchmarkResult. All but "none" and "touched" write as many bytes as the caller requests.
const (
	none    = "none"    // no tensor
	private = "private" // fills memory that is not sent
	touched = "touched" // a slab, of which two bytes are written
	filled  = "filled"  // a slab
	cached  = "cached"  // the same memory in each result
)

// resultOut is a result and the time for which its function wrote memory.
type resultOut struct {
	Tensor *tensor.Tensor
	Took   time.Duration
}

var privateBytes = sync.OnceValue(func() []byte { return make([]byte, 64<<20) })

// serveResultsOp makes a worker serve the functions of BenchmarkResult on a socket.
var serveResultsOp = fixture.NewOp("serve results", func(w *fixture.Worker, _ context.Context, socket string) (fixture.None, error) {
	write := func(data []byte, in pageIn) time.Duration {
		start := time.Now()
		for i := range data {
			data[i] = in.Value
		}
		return time.Since(start)
	}
	made := func(ctx context.Context, in pageIn, all bool) (out resultOut, err error) {
		if out.Tensor, err = tensor.Empty(endpoint.ResultDevice(ctx, w.Dev), tensor.Uint8, tensor.Shape{in.Bytes}); err != nil {
			return out, err
		}
		data, err := tensor.Data[uint8](out.Tensor)
		if err == nil && all {
			out.Took = write(data, in)
		} else if err == nil {
			data[0], data[len(data)-1] = in.Value, in.Value
		}
		return out, err
	}
	fill := func(ctx context.Context, in pageIn) (resultOut, error) { return made(ctx, in, true) }
	r := endpoint.NewRegistry()
	err := errors.Join(
		endpoint.Register(r, none, func(context.Context, pageIn) (resultOut, error) { return resultOut{}, nil }),
		endpoint.Register(r, private, func(_ context.Context, in pageIn) (resultOut, error) {
			return resultOut{Took: write(privateBytes()[:in.Bytes], in)}, nil
		}),
		endpoint.Register(r, touched, func(ctx context.Context, in pageIn) (resultOut, error) { return made(ctx, in, false) }),
		endpoint.Register(r, filled, fill), endpoint.Register(r, cached, fill, endpoint.Cached()),
	)
	if err != nil {
		return fixture.None{}, err
	}
	s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: fixture.DriversOf(w.Dev), Registry: r})
	if err != nil {
		return fixture.None{}, err
	}
	go s.Serve(context.Background())
	return fixture.None{}, nil
})

// BenchmarkResult requests results of another process and reports the median duration without the time that the function
// writes memory. A fill takes longer than both sides poll, and replaces what the processor's caches hold. "private" has
// these effects without a tensor, and "touched" has the tensor without them.
func BenchmarkResult(b *testing.B) {
	socket := proctest.SocketPath(b)
	serveResultsOp.Must(fixture.Start(b).Process, socket)
	dev, err := host.Open()
	require.NoError(b, err)
	defer dev.Close()
	for _, size := range []int64{1 << 20, 8 << 20, 64 << 20} {
		for _, name := range []string{none, private, touched, filled, cached} {
			b.Run(fmt.Sprintf("bytes=%d/function=%s", size, name), func(b *testing.B) {
				c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: fixture.DriversOf(dev)})
				require.NoError(b, err)
				defer c.Close()
				var took []time.Duration
				for i := 0; b.Loop(); i++ {
					one, err := resultTime(c, name, pageIn{size, uint8(i)})
					require.NoError(b, err)
					took = append(took, one)
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
			})
		}
	}
}

// resultTime makes one call and reads both ends of the result.
func resultTime(c *endpoint.Client, name string, in pageIn) (time.Duration, error) {
	if name == cached {
		in.Value = 1
	}
	start := time.Now()
	out, err := endpoint.Call[resultOut](context.Background(), c, name, in)
	if err == nil && out.Tensor != nil {
		var data []uint8
		data, err = tensor.Data[uint8](out.Tensor)
		if err == nil && (data[0] != in.Value || data[in.Bytes-1] != in.Value) {
			err = errors.New("the result has other bytes")
		}
		err = errors.Join(err, out.Tensor.Close())
	}
	if name == cached {
		out.Took = 0 // of the first call
	}
	return time.Since(start) - out.Took, err
}

// Package peers compares calls of package endpoint with the same calls in other libraries, between two processes of one
// host, over Unix sockets:
//
//	go test -run - -bench . -timeout 2h ./endpoint/internal/peers | tee figures.txt
//	benchstat -col /peer figures.txt
//
// Each peer serves in a separate process, which runs this test binary. A benchmark runs one pair of processes for a
// second or longer, as a user's program does. Turns of a few milliseconds would measure the kernel instead: it starts
// both processes on one processor and moves one of them away only after a while. A call takes about half as long
// between two processors.
//
// The bare socket is the lower bound: a length and a CBOR item in each direction, encoded by the same library as
// endpoint's, without ids, names, deadlines or cancellation. It has a connection for each caller. The others share one
// connection. The side of iceoryx2 is a small Rust program, which is built if cargo is installed.
//
// This is a separate module, so that users of the root module do not depend on the compared libraries.
package peers

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

// peer is one way to call a function of another process.
type peer struct {
	name string
	// serve answers calls on a socket until the Closer is closed.
	serve func(socket string) (io.Closer, error)
	// dial connects to a server's socket. callers is the number of concurrent calls.
	dial func(socket string, callers int) (client, error)
	// maxBytes is the size of the largest argument, or 0 if there is no limit.
	maxBytes int64
}

// client calls the two functions that every peer serves. Its methods are safe for concurrent use.
type client interface {
	// echo returns its argument.
	echo(ctx context.Context, data []byte) ([]byte, error)
	// send passes an argument to a function that returns its sign.
	send(ctx context.Context, arg argument) (uint64, error)
	Close() error
}

// argument is a tensor of bytes in memory that can be shared. bytes is its content.
type argument struct {
	tensor *tensor.Tensor
	bytes  []byte
}

// echoed is the message of the peers that encode Go structs.
type echoed struct{ Data []byte }

// sign returns the result of the function that receives a tensor. It proves that both ends of the argument have
// arrived.
func sign(data []byte) uint64 {
	return uint64(len(data))<<16 | uint64(data[0])<<8 | uint64(data[len(data)-1])
}

// peers returns all peers. "sleeping" is package endpoint without polling before it sleeps, like the others.
func peers() []peer {
	return []peer{ours("endpoint", wire.Limits{}), ours("sleeping", wire.Limits{BusyPoll: -1}), grpcPeer(), netRPC(), bare()}
}

// The variables of a child hold the name of the peer to serve, and its socket.
const (
	childEnv  = "PEERS_CHILD"
	socketEnv = "PEERS_SOCKET"
)

// TestMain serves a peer in a child and runs the tests otherwise.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	if err := serveChild(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveChild() error {
	for _, p := range peers() {
		if p.name != os.Getenv(childEnv) {
			continue
		}
		served, err := p.serve(os.Getenv(socketEnv))
		if err != nil {
			return fmt.Errorf("serve %s: %w", p.name, err)
		}
		defer served.Close()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			e := spent()
			fmt.Println(e.objects, int64(e.processor))
		}
		return nil
	}
	return errors.New("unknown peer " + os.Getenv(childEnv))
}

// server is a process that serves one peer. It answers each line on its standard input with its expense so far.
type server struct {
	in  io.Writer
	out io.Reader
}

// connect starts the server of a peer and connects to it. Both end with the test.
func connect(t testing.TB, p peer, callers int) (client, *server) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+p.name, socketEnv+"="+socket)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		require.NoError(t, cmd.Wait())
	})
	s := &server{in, bufio.NewReader(out)}
	s.spent(t) // the server answers when it is ready
	c, err := p.dial(socket, callers)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c, s
}

// expense is the number of objects that a process has allocated, and its processor time, including the kernel's.
type expense struct {
	objects   uint64
	processor time.Duration
}

// spent returns the expense of this process so far.
func spent() expense {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // cannot fail with these arguments
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return expense{objects: m.Mallocs, processor: time.Duration(u.Utime.Nano() + u.Stime.Nano())}
}

func (s *server) spent(t testing.TB) (e expense) {
	_, err := io.WriteString(s.in, "\n")
	require.NoError(t, err)
	_, err = fmt.Fscanln(s.out, &e.objects, &e.processor)
	require.NoError(t, err)
	return e
}

// measure runs b's loop and reports the median and the 99th percentile of call's durations. If s is not nil it also
// reports the allocations and the processor time of both processes.
func measure(b *testing.B, s *server, call func(i int) (time.Duration, error)) {
	b.Helper()
	const warm = 200
	for i := range warm {
		if _, err := call(i); err != nil {
			b.Fatal(err)
		}
	}
	var mine, theirs expense
	if s != nil {
		mine, theirs = spent(), s.spent(b)
	}
	var took []time.Duration
	for i := warm; b.Loop(); i++ {
		one, err := call(i)
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, one)
	}
	if s != nil {
		m, t := spent(), s.spent(b)
		b.ReportMetric(float64(m.objects-mine.objects+t.objects-theirs.objects)/float64(b.N), "allocations/op")
		b.ReportMetric(float64(m.processor-mine.processor+t.processor-theirs.processor)/float64(b.N), "processor-ns/op")
	}
	reportQuantiles(b, took)
}

func reportQuantiles(b *testing.B, took []time.Duration) {
	b.ReportMetric(float64(quantile(took, 0.5)), "p50-ns")
	b.ReportMetric(float64(quantile(took, 0.99)), "p99-ns")
}

func quantile[E cmp.Ordered](list []E, part float64) E {
	slices.Sort(list)
	return list[min(len(list)-1, int(part*float64(len(list))))]
}

// timed returns the duration of call.
func timed(call func() error) (time.Duration, error) {
	start := time.Now()
	err := call()
	return time.Since(start), err
}

// smallData is the payload of a small call in each direction.
var smallData = bytes.Repeat([]byte{0x5a}, 64)

func smallCall(ctx context.Context, c client) error {
	got, err := c.echo(ctx, smallData)
	if err == nil && !bytes.Equal(got, smallData) {
		err = fmt.Errorf("the answer differs from the request (%d bytes)", len(got))
	}
	return err
}

// newArgument returns a tensor whose pages are all allocated.
func newArgument(t testing.TB, size int64) argument {
	dev, err := hostDevice()
	require.NoError(t, err)
	x, err := tensor.Zeros(dev, tensor.Uint8, tensor.Shape{size})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, x.Close()) })
	data, err := tensor.Data[uint8](x)
	require.NoError(t, err)
	for i := range data {
		data[i] = byte(i*31 + 7)
	}
	return argument{tensor: x, bytes: data}
}

func sendArgument(ctx context.Context, c client, arg argument) error {
	got, err := c.send(ctx, arg)
	if err == nil && got != sign(arg.bytes) {
		err = fmt.Errorf("the function returned %#x instead of %#x", got, sign(arg.bytes))
	}
	return err
}

// Every peer passes bytes and tensors to another process.
func TestPeers(t *testing.T) {
	for _, p := range peers() {
		t.Run(p.name, func(t *testing.T) {
			c, _ := connect(t, p, 2)
			require.NoError(t, smallCall(t.Context(), c))
			require.NoError(t, sendArgument(t.Context(), c, newArgument(t, 100_000)))
		})
	}
}

// BenchmarkCall makes small calls in sequence.
func BenchmarkCall(b *testing.B) {
	for _, p := range peers() {
		b.Run("peer="+p.name, func(b *testing.B) {
			c, s := connect(b, p, 1)
			measure(b, s, func(int) (time.Duration, error) { return timed(func() error { return smallCall(b.Context(), c) }) })
		})
	}
	for _, how := range []string{"call-spin", "call-event"} {
		b.Run("peer=iceoryx2-"+how, func(b *testing.B) { benchmarkIceoryx(b, how) })
	}
}

// BenchmarkCallers makes small calls from many goroutines.
func BenchmarkCallers(b *testing.B) {
	const callers = 64
	for _, p := range peers() {
		b.Run("peer="+p.name, func(b *testing.B) {
			c, _ := connect(b, p, callers)
			b.SetParallelism(max(callers/runtime.GOMAXPROCS(0), 1))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := smallCall(b.Context(), c); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// BenchmarkArgument passes a tensor to a function that reads its first and last byte. Package endpoint passes a handle,
// and the server keeps the memory mapped between calls. The others copy the bytes.
func BenchmarkArgument(b *testing.B) {
	sizes := []int64{1 << 10, 1 << 20, 1 << 30}
	if testing.Short() {
		sizes = sizes[:2]
	}
	for _, size := range sizes {
		arg := newArgument(b, size)
		for _, p := range peers() {
			b.Run(fmt.Sprintf("bytes=%d/peer=%s", size, p.name), func(b *testing.B) {
				if p.maxBytes > 0 && size > p.maxBytes {
					b.Skipf("an argument has at most %d bytes", p.maxBytes)
				}
				c, _ := connect(b, p, 1)
				for b.Loop() {
					require.NoError(b, sendArgument(b.Context(), c, arg))
				}
			})
		}
	}
}

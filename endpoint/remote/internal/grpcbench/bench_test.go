// Package grpcbench compares remote compute and tensor streams with bare grpc-go, and that with raw TCP. Each operation
// alternates with its floors in one run, so that ratios do not depend on the time of measurement. The server is another
// process.
//
//	go test -run '^$' -bench . ./internal/grpcbench
package grpcbench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission/grpcguard"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute/computepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

const serverEnv = "GRPCBENCH_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const (
	large      = 64 << 20
	chunkBytes = 1 << 20
	dataField  = 1
)

// bare is the floor: generated handlers, or a stream with the codec of package bulk that copies received bytes to
// memory and sends them back.
type bare struct {
	computepb.UnimplementedComputeServiceServer
	memory []byte
}

func (bare) Compute(_ context.Context, r *computepb.ComputeRequest) (*computepb.ComputeResponse, error) {
	return &computepb.ComputeResponse{Data: r.GetData(), Shape: r.GetShape()}, nil
}

func (s *bare) ComputeStream(call grpc.BidiStreamingServer[computepb.ComputeRequest, computepb.ComputeResponse]) error {
	in := &bulk.Message{Head: new(computepb.ComputeRequest), Field: dataField}
	at := 0
	for at < large {
		if err := call.RecvMsg(in); err != nil {
			return err
		}
		data := in.Data()
		at += data.CopyTo(s.memory[at:])
		in.Free()
		if r := in.Head.(*computepb.ComputeRequest); r.GetModelId() == "down" {
			break
		}
	}
	if in.Head.(*computepb.ComputeRequest).GetModelId() == "up" {
		return call.Send(&computepb.ComputeResponse{})
	}
	for at := 0; at < large; at += chunkBytes {
		out := &bulk.Message{Head: new(computepb.ComputeResponse), Field: dataField}
		out.SetData(mem.BufferSlice{mem.SliceBuffer(s.memory[at : at+chunkBytes])})
		if err := bulk.Send(call, out); err != nil {
			return err
		}
	}
	return nil
}

// source provides one large tensor. sink discards received tensors.
type source struct{ set *stream.Set }

func (s source) Set(context.Context, stream.Request) (*stream.Set, error) {
	return &stream.Set{Name: "m", Tensors: s.set.Tensors.Alias()}, nil
}

func (source) Tensor(context.Context, int, map[string]string) (*stream.Item, error) {
	return nil, io.EOF
}

func model(dev *host.Device) (*stream.Set, error) {
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 1, Bytes: large, Seed: 1})
	return &stream.Set{Name: "m", Tensors: sd}, err
}

// serve runs all servers until its standard input ends, and prints their addresses. Its memory is opened as the gateway
// and the commands open it.
func serve() error {
	dev, err := host.Open(host.Lazy())
	if err != nil {
		return err
	}
	identity := compute.Func(func(_ context.Context, in *tensor.Tensor) (*tensor.Tensor, error) { return in.Alias(), nil })
	ours, err := compute.NewServer(context.Background(), compute.ServerOptions{Function: identity})
	if err != nil {
		return err
	}
	set, err := model(dev)
	if err != nil {
		return err
	}
	drop := stream.SinkFunc(func(_ context.Context, s *stream.Set) (uint64, error) { return 1, s.Close() })
	tensors, err := stream.NewServer(stream.ServerOptions{Device: dev, Source: source{set}, Sink: drop})
	if err != nil {
		return err
	}
	plain := grpc.NewServer(grpc.MaxRecvMsgSize(math.MaxInt32))
	computepb.RegisterComputeServiceServer(plain, &bare{})
	coded := grpc.NewServer(bulk.ServerOptions()...)
	memory := make([]byte, large)
	for i := range memory {
		memory[i] = byte(i)
	}
	computepb.RegisterComputeServiceServer(coded, &bare{memory: memory})
	own := grpc.NewServer(ours.GRPCOptions()...)
	ours.Register(own)
	streams := grpc.NewServer(tensors.GRPCOptions()...)
	tensors.Register(streams)
	var addresses []string
	for _, s := range []*grpc.Server{plain, coded, own, streams, guarded()} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		go s.Serve(l)
		addresses = append(addresses, l.Addr().String())
	}
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go serveRaw(raw, memory)
	fmt.Println(strings.Join(append(addresses, raw.Addr().String()), " "))
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// guarded returns the plain server with a guard that admits all clients.
func guarded() *grpc.Server {
	known := func(context.Context, string, metadata.MD) (rights.Identity, func() bool, error) {
		return rights.Identity{Name: "bench", Method: rights.MethodToken}, func() bool { return true }, nil
	}
	control := admission.New(admission.Options{Rate: admission.Rate{Bytes: 4 << 10, Grace: 30 * time.Second}})
	guard := grpcguard.New(grpcguard.Options{Controller: control, Admit: known})
	go control.Run(context.Background())
	go guard.Run(context.Background())
	server := grpc.NewServer(append(guard.ServerOptions(nil), grpc.MaxRecvMsgSize(math.MaxInt32))...)
	computepb.RegisterComputeServiceServer(guard.Services(server), &bare{})
	return server
}

// serveRaw receives large bytes and answers with one byte, or sends large bytes, depending on the first byte of each
// request.
func serveRaw(l net.Listener, memory []byte) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			var op [1]byte
			for {
				if _, err := io.ReadFull(c, op[:]); err != nil {
					return
				}
				if op[0] == 'u' {
					io.ReadFull(c, memory)
					c.Write(op[:])
					continue
				}
				for at := 0; at < large; at += chunkBytes {
					c.Write(memory[at : at+chunkBytes])
				}
			}
		}()
	}
}

// start starts the server process and returns the addresses: plain grpc-go, with the codec, compute, streams, guarded
// grpc-go, raw TCP.
func start(b *testing.B) []string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(cmd.Environ(), serverEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() { in.Close(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(b, err)
	return strings.Fields(line)
}

func dial(b *testing.B, address string, opts ...grpc.DialOption) *grpc.ClientConn {
	b.Helper()
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	conn, err := grpc.NewClient(address, opts...)
	require.NoError(b, err)
	b.Cleanup(func() { conn.Close() })
	return conn
}

// way is one implementation of the measured operation.
type way struct {
	name string
	run  func() error
}

// compare runs the ways alternately. It reports the median of each, and the ratio of each to the last one, which is
// ours.
func compare(b *testing.B, bytes int64, ways ...way) {
	b.Helper()
	took := make([][]time.Duration, len(ways))
	for i := range 5 * len(ways) { // warms up connections, pools and pages
		require.NoError(b, ways[i%len(ways)].run())
	}
	for b.Loop() {
		for i, w := range ways {
			begin := time.Now()
			if err := w.run(); err != nil {
				b.Fatal(w.name, err)
			}
			took[i] = append(took[i], time.Since(begin))
		}
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return d[len(d)/2].Seconds()
	}
	ours := median(took[len(ways)-1])
	for i, w := range ways {
		m := median(took[i])
		if bytes > 0 {
			b.ReportMetric(float64(bytes)/m/1e9, w.name+"-GB/s")
		} else {
			b.ReportMetric(m*1e6, w.name+"-µs")
		}
		if i < len(ways)-1 {
			b.ReportMetric(ours/m, "x-"+w.name)
		}
	}
	b.ReportMetric(0, "ns/op")
}

func heapTensor(b *testing.B, bytes int64) *tensor.Tensor {
	b.Helper()
	dev, err := host.Open(host.Lazy())
	require.NoError(b, err)
	t, err := tensor.Zeros(dev, tensor.Float32, tensor.Shape{bytes / 4})
	require.NoError(b, err)
	b.Cleanup(func() { t.Close(); dev.Close() })
	raw, err := tensor.RawData(t)
	require.NoError(b, err)
	for i := range raw {
		raw[i] = byte(i)
	}
	return t
}

// BenchmarkCompute4KiB measures a call with 4 KiB in and out.
func BenchmarkCompute4KiB(b *testing.B) {
	at := start(b)
	x := heapTensor(b, 4<<10)
	raw, err := tensor.RawData(x)
	require.NoError(b, err)
	floor := computepb.NewComputeServiceClient(dial(b, at[0]))
	client := compute.NewClient(dial(b, at[2]), compute.ClientOptions{})
	id := int32(1)
	compare(b, 0, way{"bare", func() error {
		_, err := floor.Compute(b.Context(), &computepb.ComputeRequest{Data: raw, Shape: []int32{1024}, RequestId: &id})
		return err
	}}, way{"bare-deadline", func() error {
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		_, err := floor.Compute(ctx, &computepb.ComputeRequest{Data: raw, Shape: []int32{1024}, RequestId: &id})
		return err
	}}, way{"compute", func() error {
		out, err := client.Compute(b.Context(), x)
		if err == nil {
			err = out.Close()
		}
		return err
	}})
}

// BenchmarkGuard measures a unary call to a server with a guard and to the same server without one.
func BenchmarkGuard(b *testing.B) {
	at := start(b)
	for _, bytes := range []int{64, 4 << 10, 1 << 20} {
		b.Run(fmt.Sprint(bytes), func(b *testing.B) {
			in := &computepb.ComputeRequest{Data: make([]byte, bytes)}
			call := func(name, address string) way {
				rpc := computepb.NewComputeServiceClient(dial(b, address))
				return way{name, func() error {
					_, err := rpc.Compute(b.Context(), in)
					return err
				}}
			}
			compare(b, 0, call("bare", at[0]), call("guarded", at[4]))
		})
	}
}

// bareStream moves large bytes over a stream with the codec: up, down, or both.
func bareStream(b *testing.B, rpc computepb.ComputeServiceClient, model string, data, into []byte) error {
	call, err := rpc.ComputeStream(b.Context())
	if err != nil {
		return err
	}
	for at := 0; at < large && (model != "down" || at == 0); at += chunkBytes {
		m := &bulk.Message{Head: &computepb.ComputeRequest{ModelId: model}, Field: dataField}
		m.SetData(mem.BufferSlice{mem.SliceBuffer(data[at : at+chunkBytes])})
		if err := bulk.Send(call, m); err != nil {
			return err
		}
	}
	in := &bulk.Message{Head: new(computepb.ComputeResponse), Field: dataField}
	for at := 0; at < large; {
		if err := call.RecvMsg(in); err != nil {
			return err
		}
		data := in.Data()
		at += data.CopyTo(into[at:])
		in.Free()
		if model == "up" {
			break
		}
	}
	return call.CloseSend()
}

// BenchmarkCompute64MiB measures a call with 64 MiB in and out, in chunks.
func BenchmarkCompute64MiB(b *testing.B) {
	at := start(b)
	x := heapTensor(b, large)
	raw, err := tensor.RawData(x)
	require.NoError(b, err)
	into := make([]byte, large)
	floor := computepb.NewComputeServiceClient(dial(b, at[1], bulk.DialOptions()...))
	client := compute.NewClient(dial(b, at[2]), compute.ClientOptions{})
	compare(b, 2*large, way{"bare", func() error { return bareStream(b, floor, "both", raw, into) }}, way{"compute", func() error {
		out, err := client.Compute(b.Context(), x)
		if err == nil {
			err = out.Close()
		}
		return err
	}})
}

// fresh is the floor for operations that keep the received bytes: new memory, with each page touched once.
func fresh(b *testing.B, dev *host.Device, run func(into []byte) error) error {
	m, err := tensor.Zeros(dev, tensor.Uint8, tensor.Shape{large})
	if err != nil {
		return err
	}
	defer m.Close()
	raw, err := tensor.RawData(m)
	if err != nil {
		return err
	}
	return run(raw)
}

// BenchmarkGet64MiB fetches a set of 64 MiB to new memory and verifies it.
func BenchmarkGet64MiB(b *testing.B) {
	at := start(b)
	dev, err := host.Open(host.Lazy())
	require.NoError(b, err)
	data, into := make([]byte, chunkBytes), make([]byte, large)
	rpc := computepb.NewComputeServiceClient(dial(b, at[1], bulk.DialOptions()...))
	client := stream.NewClient(dial(b, at[3]), stream.ClientOptions{Device: dev})
	tcp, err := net.Dial("tcp", at[5])
	require.NoError(b, err)
	defer tcp.Close()
	compare(b, large, way{"tcp", func() error {
		if _, err := tcp.Write([]byte("d")); err != nil {
			return err
		}
		_, err := io.ReadFull(tcp, into)
		return err
	}}, way{"bare", func() error { return bareStream(b, rpc, "down", data, into) }}, way{"bare-fresh", func() error {
		return fresh(b, dev, func(into []byte) error { return bareStream(b, rpc, "down", data, into) })
	}}, way{"get", func() error {
		set, err := client.Get(b.Context(), stream.Request{Name: "m"})
		if err == nil {
			err = set.Close()
		}
		return err
	}})
}

// BenchmarkPut64MiB sends a set of 64 MiB. The server stores it in new memory and verifies it.
func BenchmarkPut64MiB(b *testing.B) {
	at := start(b)
	dev, err := host.Open(host.Lazy())
	require.NoError(b, err)
	set, err := model(dev)
	require.NoError(b, err)
	defer set.Close()
	data := make([]byte, large)
	rpc := computepb.NewComputeServiceClient(dial(b, at[1], bulk.DialOptions()...))
	client := stream.NewClient(dial(b, at[3]), stream.ClientOptions{Device: dev})
	tcp, err := net.Dial("tcp", at[5])
	require.NoError(b, err)
	defer tcp.Close()
	compare(b, large, way{"tcp", func() error {
		if _, err := tcp.Write([]byte("u")); err != nil {
			return err
		}
		for at := 0; at < large; at += chunkBytes {
			if _, err := tcp.Write(data[at : at+chunkBytes]); err != nil {
				return err
			}
		}
		_, err := io.ReadFull(tcp, make([]byte, 1))
		return err
	}}, way{"bare", func() error { return bareStream(b, rpc, "up", data, data) }}, way{"put", func() error {
		_, err := client.Put(b.Context(), set)
		return err
	}})
}

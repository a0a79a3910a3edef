package compute

import (
	"context"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute/computepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/elements"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/heap"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// ClientOptions says how a client calls. A zero field stands for its default.
type ClientOptions struct {
	// Model is the function of calls that name none.
	Model string
	// Device is where results are put; nil for ordinary memory of the process. Borrowed.
	Device driver.Device
	// Timeout bounds one attempt; 30 s. Budget bounds all attempts of a call with the pauses between them; a minute.
	Timeout, Budget time.Duration
	// Retry says how often to try.
	Retry Retry
	// NotIdempotent is set for functions that must not run twice: a call is repeated only where it is certain that the
	// function was not run, and fails with ErrUnknown where the connection does not tell.
	NotIdempotent bool
	// Compression is what data may be compressed by, in both directions, such as "zstd,zlib"; empty for none. Where it
	// does not pay, and to a server of this host, it is left out.
	Compression string
	// CompressLocal compresses for a server of this host too. It is meant for tests and measurements.
	CompressLocal bool
	// StreamFrom is the size from which on a tensor goes in chunks; 32 MiB. Results may be of any size then.
	StreamFrom int64
	// ResultBytes bounds a result; 2 GiB.
	ResultBytes int64
	// DialOptions are for Dial, which has no transport security of its own: without credentials here the connection is
	// in the clear.
	DialOptions []grpc.DialOption
}

// Client calls a server. Its methods are safe for concurrent use.
type Client struct {
	conn    grpc.ClientConnInterface
	rpc     computepb.ComputeServiceClient
	opts    ClientOptions
	close   func() error
	next    atomic.Int32 // request id
	counter clientCounter
	local   atomic.Bool // the last answer came from this host

	mu        sync.Mutex
	knows     *bool // the server knows the metadata of this package; nil before it was asked
	noStreams bool  // the server has no ComputeStream
}

// NewClient returns a client of the server behind conn, which it borrows.
func NewClient(conn grpc.ClientConnInterface, opts ClientOptions) *Client {
	def(&opts.Timeout, 30*time.Second)
	def(&opts.Budget, time.Minute)
	def(&opts.StreamFrom, 32<<20)
	def(&opts.ResultBytes, 2<<30)
	opts.Retry = opts.Retry.withDefaults()
	if opts.Device == nil {
		opts.Device = new(heap.Device)
	}
	return &Client{conn: conn, rpc: computepb.NewComputeServiceClient(conn), opts: opts, close: func() error { return nil }}
}

// Dial connects to a server and asks for its health, once the connection stands. The caller closes the client. The
// error is that of the connection, or ErrNotReady with what the server says.
func Dial(ctx context.Context, address string, opts ClientOptions) (*Client, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}
	conn, err := grpc.NewClient(address, append(options, opts.DialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	c := NewClient(conn, opts)
	c.close = conn.Close
	if err := c.Health(ctx); err != nil {
		conn.Close()
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return c, nil
}

// Close closes the connection that Dial made. Calls in flight end.
func (c *Client) Close() error { return c.close() }

// callOptions are those of every call.
var callOptions = []grpc.CallOption{grpc.ForceCodecV2(bulk.Codec()), grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)}

// acceptAny is the metadata of every request, encoded: results may have any type. A map costs more to encode than all
// else of a small request.
var acceptAny = func() []byte {
	encoded, err := proto.Marshal(&computepb.ComputeRequest{Metadata: map[string]string{keyAcceptDType: "any"}})
	if err != nil {
		panic(err) // the message is a constant
	}
	return encoded
}()

// Result is a result with what it took to get it.
type Result struct {
	// Tensor is the result, owned by the caller.
	Tensor *tensor.Tensor
	// Total is the time of the attempt that succeeded. Queue and Compute are what the server says; Network is the rest.
	Total, Queue, Compute, Network time.Duration
	// Attempts is how many it took.
	Attempts int
}

// Compute runs the function on in, which it borrows: nobody may write to it until Compute has returned. The result is
// the caller's. Errors are status errors of gRPC with the operation before them; what the function returned is
// Internal. ErrUnknown is among them where the function is not idempotent and may have been run.
func (c *Client) Compute(ctx context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
	r, err := c.ComputeTimed(ctx, c.opts.Model, in)
	if err != nil {
		return nil, err
	}
	return r.Tensor, nil
}

// ComputeTimed is Compute of a certain function, which tells where the time went.
func (c *Client) ComputeTimed(ctx context.Context, model string, in *tensor.Tensor) (*Result, error) {
	var result *Result
	attempts := 0
	certain := false // the last attempt surely did not run the function
	err := c.opts.Retry.do(ctx, limits{c.opts.Timeout, c.opts.Budget}, !c.opts.NotIdempotent, func(ctx context.Context) (safe bool, err error) {
		attempts++
		result, safe, err = c.attempt(ctx, model, in)
		c.counter.attempt(result, err)
		certain = safe
		return safe, err
	})
	c.counter.request(err)
	if err != nil && c.opts.NotIdempotent && !certain && mayHaveRun(err) {
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if err != nil {
		return nil, fmt.Errorf("compute %q: %w", model, err)
	}
	result.Attempts = attempts
	return result, nil
}

// attempt makes one call.
func (c *Client) attempt(ctx context.Context, model string, in *tensor.Tensor) (result *Result, safe bool, err error) {
	knows := false
	if in.DType() != tensor.Float32 || c.opts.Compression != "" {
		if knows, err = c.serverKnows(ctx); err != nil {
			return nil, true, err
		}
		if !knows && in.DType() != tensor.Float32 {
			return nil, true, fmt.Errorf("%w: the server takes float32, not %s", tensor.ErrDType, in.DType())
		}
	}
	buffer, err := elements.Borrow(in.Clone(), c.opts.Device)
	if err != nil {
		return nil, true, err
	}
	defer buffer.Free()
	id := c.next.Add(1)
	head := &computepb.ComputeRequest{RequestId: &id, ModelId: model}
	head.Shape, head.WideShape = shapeFields(in.Shape())
	if in.DType() != tensor.Float32 {
		head.Metadata = map[string]string{keyDType: in.DType().String()}
	}
	begin := time.Now()
	var trailer metadata.MD
	if int64(buffer.Len()) > c.opts.StreamFrom && !c.withoutStreams() {
		result, trailer, err = c.stream(ctx, head, buffer)
		if status.Code(err) == codes.Unimplemented && len(trailer.Get(notRun)) == 0 { // a server of splitlearn-comm
			c.mu.Lock()
			c.noStreams = true
			c.mu.Unlock()
			result, trailer, err = c.unary(ctx, head, buffer, knows)
		}
	} else {
		result, trailer, err = c.unary(ctx, head, buffer, knows)
	}
	if err != nil {
		return nil, len(trailer.Get(notRun)) > 0, err
	}
	result.Total = time.Since(begin)
	result.Network = max(0, result.Total-result.Queue-result.Compute)
	return result, false, nil
}

// mayHaveRun reports whether an error leaves open what became of the call: the server's own answers do not.
func mayHaveRun(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown:
		return true
	}
	return false
}

func (c *Client) withoutStreams() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.noStreams
}

// serverKnows asks once whether the server knows the metadata of this package.
func (c *Client) serverKnows(ctx context.Context) (bool, error) {
	c.mu.Lock()
	knows := c.knows
	c.mu.Unlock()
	if knows != nil {
		return *knows, nil
	}
	info, err := c.Info(ctx)
	if err != nil {
		return false, err
	}
	answer := info.Custom[keyProtocol] == Protocol
	c.mu.Lock()
	defer c.mu.Unlock()
	c.knows = &answer
	return answer, nil
}

func (c *Client) unary(ctx context.Context, head *computepb.ComputeRequest, buffer mem.Buffer, knows bool) (*Result, metadata.MD, error) {
	request := &bulk.Message{Head: head, Field: dataField, Extra: acceptAny}
	var trailer metadata.MD
	var remote peer.Peer
	options := callOptions
	if c.opts.NotIdempotent { // else nobody asks whether the function was run
		options = append(options[:len(options):len(options)], grpc.Trailer(&trailer))
	}
	if c.opts.NotIdempotent || c.opts.Compression != "" {
		options = append(options[:len(options):len(options)], grpc.Peer(&remote))
	}
	data := mem.BufferSlice{buffer}
	if compression := choose(c.opts.Compression); compression != "" && knows && (c.opts.CompressLocal || !c.local.Load()) {
		if head.Metadata == nil {
			head.Metadata = make(map[string]string, 2)
		}
		head.Metadata[keyAcceptCompression] = c.opts.Compression
		if packed, ok := deflate(buffer.ReadOnlyData(), compression); ok {
			head.Metadata[keyCompression] = compression
			data = packed
		}
	}
	data.Ref() // the message gives its own away
	request.SetData(data)
	defer request.Free()
	response := &bulk.Message{Head: new(computepb.ComputeResponse), Field: dataField}
	defer response.Free()
	if err := c.conn.Invoke(ctx, computepb.ComputeService_Compute_FullMethodName, request, response, options...); err != nil {
		if c.opts.NotIdempotent && remote.Addr == nil { // it never got as far as a connection
			trailer = surelyNotRun
		}
		return nil, trailer, err
	}
	c.local.Store(isLocal(remote.Addr))
	out := response.TakeData()
	defer out.Free()
	answer := response.Head.(*computepb.ComputeResponse)
	spec, bytes, err := c.describe(answer)
	if err != nil {
		return nil, nil, err
	}
	t, err := decode(out, spec, bytes, answer.GetMetadata()[keyCompression], c.opts.Device)
	if err != nil {
		return nil, nil, err
	}
	return newResult(t, answer), nil, nil
}

// surelyNotRun stands in for the server's trailer where the client itself knows it.
var surelyNotRun = metadata.Pairs(notRun, "1")

// isLocal reports whether an address is that of a process of this host, as far as that can be seen.
func isLocal(a net.Addr) bool {
	switch a := a.(type) {
	case *net.UnixAddr:
		return true
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	}
	return false
}

func (c *Client) stream(ctx context.Context, head *computepb.ComputeRequest, buffer mem.Buffer) (*Result, metadata.MD, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := c.rpc.ComputeStream(ctx, callOptions...)
	if err != nil {
		return nil, surelyNotRun, err
	}
	next := func() *bulk.Message { return &bulk.Message{Head: new(computepb.ComputeRequest), Field: dataField} }
	// An error of sending is that the call is over: receiving says why.
	all := sendChunks(call, &bulk.Message{Head: head, Field: dataField, Extra: acceptAny}, buffer, next) == nil
	if all {
		if err := call.CloseSend(); err != nil {
			return nil, nil, err
		}
	}
	first := &bulk.Message{Head: new(computepb.ComputeResponse), Field: dataField}
	if err := call.RecvMsg(first); err != nil {
		if !all && mayHaveRun(err) { // the function is run when its argument is there
			return nil, surelyNotRun, err
		}
		return nil, call.Trailer(), err
	}
	answer, data := first.Head.(*computepb.ComputeResponse), first.TakeData()
	spec, bytes, err := c.describe(answer)
	if err != nil {
		data.Free()
		return nil, nil, err
	}
	t, err := newTensor(c.opts.Device, spec, bytes)
	if err != nil {
		data.Free()
		return nil, nil, err
	}
	more := &bulk.Message{Head: new(computepb.ComputeResponse), Field: dataField}
	err = fill(t, data, bytes, func() (mem.BufferSlice, error) {
		err := call.RecvMsg(more)
		return more.TakeData(), err
	})
	if err != nil {
		t.Close()
		return nil, nil, err
	}
	return newResult(t, answer), nil, nil
}

// describe checks what the server says of a result.
func (c *Client) describe(answer *computepb.ComputeResponse) (tensor.Spec, int64, error) {
	spec, bytes, err := describe(shapeOf(answer.GetShape(), answer.GetWideShape()), answer.GetMetadata(), c.opts.ResultBytes)
	if err != nil {
		err = fmt.Errorf("result: %w", err)
	}
	return spec, bytes, err
}

func newResult(t *tensor.Tensor, answer *computepb.ComputeResponse) *Result {
	ms := func(f float32) time.Duration { return time.Duration(float64(f) * float64(time.Millisecond)) }
	return &Result{Tensor: t, Queue: ms(answer.GetQueueTimeMs()), Compute: ms(answer.GetComputeTimeMs())}
}

// Health returns nil where the server says that Compute would work, and else why not.
func (c *Client) Health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	response, err := c.rpc.HealthCheck(ctx, &computepb.HealthRequest{}, callOptions...)
	if err != nil {
		return fmt.Errorf("health: %w", err)
	}
	// The asynchronous server of splitlearn-comm says "healthy", the other one "ok".
	if s := response.GetStatus(); s != "ok" && s != "healthy" {
		return fmt.Errorf("health: %w: %s: %s", ErrNotReady, s, response.GetMessage())
	}
	return nil
}

// Info is what a server says of itself.
type Info struct {
	// Name, Version and Device are the server's.
	Name, Version, Device string
	// Uptime is how long it has run.
	Uptime time.Duration
	// Requests is how many it has had.
	Requests int64
	// Custom is what its function says.
	Custom map[string]string
}

// Info asks the server what it is.
func (c *Client) Info(ctx context.Context) (*Info, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	r, err := c.rpc.GetServiceInfo(ctx, &computepb.ServiceInfoRequest{}, callOptions...)
	if err != nil {
		return nil, fmt.Errorf("service info: %w", err)
	}
	return &Info{
		Name: r.GetServiceName(), Version: r.GetVersion(), Device: r.GetDevice(), Uptime: time.Duration(float64(r.GetUptimeSeconds()) * float64(time.Second)),
		Requests: r.GetTotalRequests(), Custom: r.GetCustomInfo(),
	}, nil
}

// ClientStatistics are the figures of a client.
type ClientStatistics struct {
	// Requests is how many calls were made, Attempts how often they were tried, Failures how many did not succeed.
	Requests, Attempts, Failures uint64
	// AvgNetwork, AvgQueue, AvgCompute and AvgTotal are means over the attempts that succeeded. Total is the sum of the
	// others.
	AvgNetwork, AvgQueue, AvgCompute, AvgTotal time.Duration
}

// Statistics returns the figures.
func (c *Client) Statistics() ClientStatistics { return c.counter.statistics() }

// clientCounter counts calls.
type clientCounter struct {
	mu                              sync.Mutex
	requests, attempts, failures    uint64
	succeeded                       int64
	network, queue, compute, totals time.Duration
}

func (c *clientCounter) attempt(r *Result, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempts++
	if err == nil {
		c.succeeded++
		c.network += r.Network
		c.queue += r.Queue
		c.compute += r.Compute
		c.totals += r.Total
	}
}

func (c *clientCounter) request(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	if err != nil {
		c.failures++
	}
}

func (c *clientCounter) statistics() ClientStatistics {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := ClientStatistics{Requests: c.requests, Attempts: c.attempts, Failures: c.failures}
	if n := time.Duration(c.succeeded); n > 0 {
		s.AvgNetwork, s.AvgQueue, s.AvgCompute, s.AvgTotal = c.network/n, c.queue/n, c.compute/n, c.totals/n
	}
	return s
}

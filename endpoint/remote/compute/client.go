package compute

import (
	"cmp"
	"context"
	"fmt"
	"math"
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
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// ClientOptions configures a client. A zero field means its default.
type ClientOptions struct {
	// Model is the default function of calls.
	Model string
	// Device holds results; nil means ordinary process memory. Borrowed.
	Device driver.Device
	// Timeout limits one attempt; 30 s. Budget limits all attempts of a call, including the pauses; one minute.
	Timeout, Budget time.Duration
	// Retry configures the attempts.
	Retry Retry
	// NotIdempotent must be set for functions that must not run twice. A call is then retried only if the function
	// certainly did not run. If the connection breaks and this is uncertain, the call fails with ErrUnknown.
	NotIdempotent bool
	// Compression lists the compressions for data in both directions, such as "zstd,zlib"; empty for none. Data is not
	// compressed if that would not pay, or if the server is on this host.
	Compression string
	// CompressLocal compresses data for a server on this host too. Use it for tests and measurements.
	CompressLocal bool
	// StreamFrom is the size in bytes from which tensors are sent in chunks; 32 MiB. Results of such calls can have any
	// size.
	StreamFrom int64
	// ResultBytes limits a result; 2 GiB.
	ResultBytes int64
	// DialOptions are passed to gRPC by Dial. Without credentials among them, the connection is not encrypted.
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
	knows     *bool // whether the server supports the metadata of this package; nil until the server has been queried
	noStreams bool  // the server does not implement ComputeStream
}

// NewClient returns a client of the server at the far end of conn, which it borrows.
func NewClient(conn grpc.ClientConnInterface, opts ClientOptions) *Client {
	opts.Timeout = cmp.Or(opts.Timeout, 30*time.Second)
	opts.Budget = cmp.Or(opts.Budget, time.Minute)
	opts.StreamFrom = cmp.Or(opts.StreamFrom, 32<<20)
	opts.ResultBytes = cmp.Or(opts.ResultBytes, 2<<30)
	opts.Retry = opts.Retry.withDefaults()
	if opts.Device == nil {
		opts.Device = new(heapDevice)
	}
	return &Client{conn: conn, rpc: computepb.NewComputeServiceClient(conn), opts: opts, close: func() error { return nil }}
}

// Dial connects to a server and checks its health. The caller closes the client. The error is that of the connection,
// or ErrNotReady with the server's message.
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

// Close closes the connection that Dial made. It ends calls in flight.
func (c *Client) Close() error { return c.close() }

// callOptions apply to every call.
var callOptions = []grpc.CallOption{grpc.ForceCodecV2(bulk.Codec()), grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)}

// acceptAny is the encoded metadata of every request: results can have any type. Encoding a map costs more than the
// rest of a small request.
var acceptAny = func() []byte {
	encoded, err := proto.Marshal(&computepb.ComputeRequest{Metadata: map[string]string{keyAcceptDType: "any"}})
	if err != nil {
		panic(err) // the message is a constant
	}
	return encoded
}()

// Result is a result with its timing.
type Result struct {
	// Tensor is the result. The caller owns it.
	Tensor *tensor.Tensor
	// Total is the duration of the successful attempt. The server reports Queue and Compute; Network is the rest.
	Total, Queue, Compute, Network time.Duration
	// Attempts is the number of attempts made.
	Attempts int
}

// Compute runs the function on in and returns the result, which the caller owns. It borrows in, which must not be
// written to until Compute returns. Errors are gRPC status errors prefixed with the operation. An error of the function
// has the code Internal. The error is ErrUnknown if the function is not idempotent and may have run.
func (c *Client) Compute(ctx context.Context, in *tensor.Tensor) (*tensor.Tensor, error) {
	r, err := c.ComputeTimed(ctx, c.opts.Model, in)
	if err != nil {
		return nil, err
	}
	return r.Tensor, nil
}

// ComputeTimed is Compute for the function model. It also returns the timing.
func (c *Client) ComputeTimed(ctx context.Context, model string, in *tensor.Tensor) (*Result, error) {
	var result *Result
	attempts := 0
	certain := false // whether the last attempt certainly did not run the function
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
	buffer, err := bulk.BorrowTensor(in.Alias(), c.opts.Device)
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

// mayHaveRun reports whether the function may have run despite the error. The server's own errors exclude that.
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

// serverKnows reports whether the server supports the metadata of this package. It queries the server once.
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
	if c.opts.NotIdempotent { // otherwise the trailer is not needed
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
			data = mem.BufferSlice{mem.SliceBuffer(packed)}
		}
	}
	data.Ref() // the message releases its own reference
	request.SetData(data)
	defer request.Free()
	response := &bulk.Message{Head: new(computepb.ComputeResponse), Field: dataField}
	defer response.Free()
	if err := c.conn.Invoke(ctx, computepb.ComputeService_Compute_FullMethodName, request, response, options...); err != nil {
		if c.opts.NotIdempotent && remote.Addr == nil { // no connection was established
			trailer = surelyNotRun
		}
		return nil, trailer, err
	}
	c.local.Store(local.Addr(remote.Addr))
	answer := response.Head.(*computepb.ComputeResponse)
	spec, bytes, err := c.describe(answer)
	if err != nil {
		return nil, nil, err
	}
	t, err := decode(response.Data(), spec, bytes, answer.GetMetadata()[keyCompression], c.opts.Device)
	if err != nil {
		return nil, nil, err
	}
	return newResult(t, answer), nil, nil
}

// surelyNotRun replaces the server's trailer if the request was never sent.
var surelyNotRun = metadata.Pairs(notRun, "1")

func (c *Client) stream(ctx context.Context, head *computepb.ComputeRequest, buffer mem.Buffer) (*Result, metadata.MD, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := c.rpc.ComputeStream(ctx, callOptions...)
	if err != nil {
		return nil, surelyNotRun, err
	}
	next := func() *bulk.Message { return &bulk.Message{Head: new(computepb.ComputeRequest), Field: dataField} }
	// If sending fails, the call has ended. Receiving returns the reason.
	all := sendChunks(call, &bulk.Message{Head: head, Field: dataField, Extra: acceptAny}, buffer, next) == nil
	if all {
		if err := call.CloseSend(); err != nil {
			return nil, nil, err
		}
	}
	first := &bulk.Message{Head: new(computepb.ComputeResponse), Field: dataField}
	defer first.Free()
	if err := call.RecvMsg(first); err != nil {
		if !all && mayHaveRun(err) { // the server runs the function only after it has received the whole argument
			return nil, surelyNotRun, err
		}
		return nil, call.Trailer(), err
	}
	answer := first.Head.(*computepb.ComputeResponse)
	spec, bytes, err := c.describe(answer)
	if err != nil {
		return nil, nil, err
	}
	t, err := newTensor(c.opts.Device, spec, bytes)
	if err != nil {
		return nil, nil, err
	}
	err = fill(t, first, bytes, nil, func() (*bulk.Message, error) {
		more := &bulk.Message{Head: new(computepb.ComputeResponse), Field: dataField}
		return more, call.RecvMsg(more)
	})
	if err != nil {
		t.Close()
		return nil, nil, err
	}
	return newResult(t, answer), nil, nil
}

// describe validates the server's description of a result.
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

// Health returns nil if the server reports that Compute would work, and otherwise the reason.
func (c *Client) Health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	response, err := c.rpc.HealthCheck(ctx, &computepb.HealthRequest{}, callOptions...)
	if err != nil {
		return fmt.Errorf("health: %w", err)
	}
	// The asynchronous server of splitlearn-comm returns "healthy", the synchronous one "ok".
	if s := response.GetStatus(); s != "ok" && s != "healthy" {
		return fmt.Errorf("health: %w: %s: %s", ErrNotReady, s, response.GetMessage())
	}
	return nil
}

// Info describes a server.
type Info struct {
	// Name, Version and Device are those reported by the server.
	Name, Version, Device string
	// Uptime is the time since the server started.
	Uptime time.Duration
	// Requests is the number of requests since then.
	Requests int64
	// Custom is the description provided by the server's function.
	Custom map[string]string
}

// Info requests the server's description.
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

// ClientStatistics holds the counters of a client.
type ClientStatistics struct {
	// Requests is the number of calls, Attempts the number of attempts, and Failures the number of failed calls.
	Requests, Attempts, Failures uint64
	// AvgNetwork, AvgQueue, AvgCompute and AvgTotal are means over the successful attempts. AvgTotal is the sum of the
	// other three.
	AvgNetwork, AvgQueue, AvgCompute, AvgTotal time.Duration
}

// Statistics returns the counters.
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

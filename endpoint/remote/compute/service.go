package compute

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute/computepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/elements"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pump"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// dataField is the number of the large field of requests and responses.
const dataField protowire.Number = 1

// notRun is the trailer of an error of which it is certain that the function was not run.
const notRun = "sharedtensor-not-run"

// ServiceName is the name of the gRPC service.
const ServiceName = "splitlearn.comm.ComputeService"

// Register adds the service to a gRPC server, which takes messages of MessageBytes and some more, and has the codec of
// package bulk where elements are not to be copied more often than needed.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	desc := computepb.ComputeService_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	for i := range desc.Methods {
		if desc.Methods[i].MethodName == "Compute" {
			desc.Methods[i].Handler = handleCompute // the generated one would copy
		}
	}
	r.RegisterService(&desc, service{server: s})
}

// service implements the generated interface.
type service struct {
	computepb.UnimplementedComputeServiceServer
	server *Server
}

func handleCompute(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // grpc's order
	in := &bulk.Message{Head: new(computepb.ComputeRequest), Field: dataField}
	if err := dec(in); err != nil {
		return nil, err
	}
	handler := func(ctx context.Context, in any) (any, error) { return srv.(service).compute(ctx, in.(*bulk.Message)) }
	if interceptor == nil {
		return handler(ctx, in)
	}
	return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: computepb.ComputeService_Compute_FullMethodName}, handler)
}

// compute answers a request that is one message.
func (sv service) compute(ctx context.Context, in *bulk.Message) (*bulk.Message, error) {
	data := in.TakeData()
	defer data.Free()
	j := sv.server.newJob(in.Head.(*computepb.ComputeRequest))
	out, err := j.run(ctx, sv.server.opts.MessageBytes, func(spec tensor.Spec, bytes int64, dev driver.Device) (*tensor.Tensor, error) {
		j.timing.in = data.Len()
		compression := j.request.GetMetadata()[keyCompression]
		if compression == "" && looksLikeZlib(data, bytes) {
			compression, j.packed = Zlib, true
		}
		return decode(data, spec, bytes, compression, dev)
	})
	var response *bulk.Message
	if err == nil {
		response, err = j.message(out)
	}
	j.end(err)
	if err != nil && !j.ran {
		grpc.SetTrailer(ctx, metadata.Pairs(notRun, "1"))
	}
	return response, statusOf(err)
}

// job is one request.
type job struct {
	server  *Server
	request *computepb.ComputeRequest
	known   bool  // the server has the function
	ran     bool  // the function was called
	packed  bool  // the client compresses without saying so
	stream  bool  // the argument comes in chunks
	bytes   int64 // of PendingBytes
	timing  timing
	counted []*recorder
}

func (s *Server) newJob(request *computepb.ComputeRequest) *job {
	return &job{server: s, request: request}
}

// run decodes the argument, waits for a worker and calls the function.
func (j *job) run(ctx context.Context, limit int64, read func(tensor.Spec, int64, driver.Device) (*tensor.Tensor, error)) (*tensor.Tensor, error) {
	s, r := j.server, j.request
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	f, err := s.find(ctx, r.GetModelId())
	j.counted = s.recorders(r.GetModelId(), err == nil)
	for _, c := range j.counted {
		c.begin()
	}
	if err != nil {
		return nil, err
	}
	if r.ForwardId != nil || r.GetTrainingMode() || r.GetUseCache() || len(r.GetPastKeyValues()) > 0 {
		return nil, fmt.Errorf("%w: training and caches of generation", ErrNotServed)
	}
	spec, bytes, err := describe(shapeOf(r.GetShape(), r.GetWideShape()), r.GetMetadata(), limit)
	if err != nil {
		return nil, err
	}
	dev := s.opts.Device
	if p, ok := f.(Placer); ok {
		dev = p.Device()
	}
	clock := time.Now()
	var in *tensor.Tensor
	if j.stream { // the client takes its time: no worker waits for it
		if in, err = read(spec, bytes, dev); err != nil {
			return nil, err
		}
		defer in.Close()
		j.timing.decode = lap(&clock)
	}
	done, err := s.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	j.timing.queue = lap(&clock)
	if !j.stream {
		if in, err = read(spec, bytes, dev); err != nil {
			return nil, err
		}
		defer in.Close()
		j.timing.decode = lap(&clock)
	}
	j.ran = true
	out, err := s.call(ctx, f, r.GetModelId(), in)
	j.timing.compute = lap(&clock)
	return out, err
}

// reserve takes the bytes of an argument that comes in chunks out of what the server has for them.
func (j *job) reserve(bytes int64) error {
	s := j.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes > s.opts.PendingBytes-s.pending {
		return fmt.Errorf("%w: %d bytes are more than is left of %d for requests in chunks", ErrTooLarge, bytes, s.opts.PendingBytes)
	}
	s.pending += bytes
	j.bytes = bytes
	return nil
}

// release gives them back.
func (j *job) release() {
	j.server.mu.Lock()
	defer j.server.mu.Unlock()
	j.server.pending -= j.bytes
}

// lap returns the time since *clock and sets it to now.
func lap(clock *time.Time) time.Duration {
	now := time.Now()
	d := now.Sub(*clock)
	*clock = now
	return d
}

// end counts the request.
func (j *job) end(err error) {
	for _, c := range j.counted {
		c.end(j.timing, err != nil)
	}
}

// response is the head of the response for a result, and its elements; it takes out.
func (j *job) response(out *tensor.Tensor) (*computepb.ComputeResponse, mem.Buffer, error) {
	var err error
	metadata := j.request.GetMetadata()
	if metadata[keyAcceptDType] != "any" {
		if out, err = toFloat32(out, j.server.opts.Device); err != nil {
			return nil, nil, err
		}
	}
	queue, computation := float32(j.timing.queue.Seconds()*1000), float32(j.timing.compute.Seconds()*1000)
	head := &computepb.ComputeResponse{RequestId: j.request.RequestId, ComputeTimeMs: &computation, QueueTimeMs: &queue}
	head.Shape, head.WideShape = shapeFields(out.Shape())
	if out.DType() != tensor.Float32 {
		head.Metadata = map[string]string{keyDType: out.DType().String()}
	}
	buffer, err := elements.Borrow(out, j.server.opts.Device)
	return head, buffer, err
}

// message is the response as one message. It takes out.
func (j *job) message(out *tensor.Tensor) (*bulk.Message, error) {
	clock := time.Now()
	head, buffer, err := j.response(out)
	if err != nil {
		return nil, err
	}
	if int64(buffer.Len()) > j.server.opts.MessageBytes {
		buffer.Free()
		return nil, fmt.Errorf("%w: the result has %d bytes, of at most %d in one message: ComputeStream takes more", ErrTooLarge, buffer.Len(), j.server.opts.MessageBytes)
	}
	compression := choose(j.request.GetMetadata()[keyAcceptCompression])
	data := mem.BufferSlice{buffer}
	if j.packed {
		data = mem.BufferSlice{mem.SliceBuffer(compress(buffer.ReadOnlyData(), Zlib))} // without a marker, and whether it pays or not
		buffer.Free()
	} else if packed, ok := deflate(buffer.ReadOnlyData(), compression); ok {
		if head.Metadata == nil {
			head.Metadata = make(map[string]string, 1)
		}
		head.Metadata[keyCompression] = compression
		buffer.Free()
		data = packed
	}
	j.timing.out = data.Len()
	response := &bulk.Message{Head: head, Field: dataField}
	response.SetData(data)
	j.timing.encode = time.Since(clock)
	return response, nil
}

// ComputeStream answers a request in chunks.
func (sv service) ComputeStream(call grpc.BidiStreamingServer[computepb.ComputeRequest, computepb.ComputeResponse]) error {
	newRequest := func() *computepb.ComputeRequest { return new(computepb.ComputeRequest) }
	requests := pump.New(call.Context(), call, newRequest, dataField)
	request, first, err := requests.Next(sv.server.opts.Stall)
	if err != nil {
		return statusOf(err)
	}
	data := first.TakeData()
	j := sv.server.newJob(request)
	j.stream = true
	defer j.release()
	out, err := j.run(call.Context(), sv.server.opts.StreamBytes, func(spec tensor.Spec, bytes int64, dev driver.Device) (*tensor.Tensor, error) {
		if c := j.request.GetMetadata()[keyCompression]; c != "" {
			return nil, fmt.Errorf("%w: compression in ComputeStream", ErrNotServed)
		}
		return j.receive(data, spec, bytes, dev, func() (mem.BufferSlice, error) {
			_, m, err := requests.Next(sv.server.opts.Stall)
			if err != nil {
				return nil, err
			}
			return m.TakeData(), nil
		})
	})
	if err == nil {
		err = j.send(call, out)
	}
	j.end(err)
	if err != nil && !j.ran {
		call.SetTrailer(metadata.Pairs(notRun, "1"))
	}
	return statusOf(err)
}

// receive fills a tensor from chunks, the first of which is there. It takes data.
func (j *job) receive(data mem.BufferSlice, spec tensor.Spec, bytes int64, dev driver.Device, next func() (mem.BufferSlice, error)) (*tensor.Tensor, error) {
	if err := j.reserve(bytes); err != nil {
		data.Free()
		return nil, err
	}
	t, err := newTensor(dev, spec, bytes)
	if err != nil {
		data.Free()
		return nil, err
	}
	if err := fill(t, data, bytes, next); err != nil {
		t.Close()
		return nil, err
	}
	j.timing.in = int(bytes)
	return t, nil
}

// send sends a result in chunks, and takes it.
func (j *job) send(call bulk.Stream, out *tensor.Tensor) error {
	clock := time.Now()
	head, buffer, err := j.response(out)
	if err != nil {
		return err
	}
	defer buffer.Free()
	j.timing.out = buffer.Len()
	err = sendChunks(call, &bulk.Message{Head: head, Field: dataField}, buffer, func() *bulk.Message {
		return &bulk.Message{Head: new(computepb.ComputeResponse), Field: dataField}
	})
	j.timing.encode = time.Since(clock)
	return err
}

// HealthCheck says whether Compute would work.
func (sv service) HealthCheck(ctx context.Context, _ *computepb.HealthRequest) (*computepb.HealthResponse, error) {
	uptime := float32(time.Since(sv.server.started).Seconds())
	response := &computepb.HealthResponse{Status: "ok", Message: "serving", Version: sv.server.opts.Version, UptimeSeconds: &uptime}
	if err := sv.server.Check(ctx); err != nil {
		response.Status, response.Message = "unhealthy", err.Error()
	}
	return response, nil
}

// GetServiceInfo describes the service.
func (sv service) GetServiceInfo(context.Context, *computepb.ServiceInfoRequest) (*computepb.ServiceInfoResponse, error) {
	s := sv.server
	info := map[string]string{keyProtocol: Protocol}
	if len(s.opts.Functions) > 0 {
		info["models"] = strings.Join(slices.Sorted(maps.Keys(s.opts.Functions)), ",")
	}
	for _, f := range s.functions() {
		if f, ok := f.(Informer); ok && len(s.functions()) == 1 {
			maps.Copy(info, f.Info())
		}
	}
	device := info["device"]
	if device == "" {
		device = "cpu"
	}
	uptime := float32(time.Since(s.started).Seconds())
	return &computepb.ServiceInfoResponse{
		ServiceName: s.opts.Name, Version: s.opts.Version, Device: device, UptimeSeconds: &uptime,
		TotalRequests: int64(s.all.total()), CustomInfo: info,
	}, nil
}

// GetStatistics says how often functions ran and how long it took.
func (sv service) GetStatistics(_ context.Context, r *computepb.StatisticsRequest) (*computepb.StatisticsResponse, error) {
	s := sv.server.Statistics(r.GetModelId())
	return &computepb.StatisticsResponse{
		Requests: s.Requests, Failures: s.Failures, InFlight: s.InFlight, BytesIn: s.BytesIn, BytesOut: s.BytesOut,
		RequestsPerSecond: s.PerSecond, Queue: s.Queue.message(), Decode: s.Decode.message(), Compute: s.Compute.message(), Encode: s.Encode.message(),
	}, nil
}

func (d Distribution) message() *computepb.Distribution {
	m := &computepb.Distribution{
		Count: uint64(d.Count), MeanMs: d.Mean, MedianMs: d.Median, MinMs: d.Min, MaxMs: d.Max, P95Ms: d.P95, P99Ms: d.P99, StdMs: d.Std,
	}
	for _, n := range d.Histogram {
		m.Histogram = append(m.Histogram, uint64(n))
	}
	return m
}

// unexpected makes the end of a call an error where data had to come.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: the data ended early", ErrInvalid)
	}
	return err
}

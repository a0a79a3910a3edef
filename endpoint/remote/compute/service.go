package compute

import (
	"cmp"
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
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute/computepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// dataField is the number of the large field in requests and responses.
const dataField protowire.Number = 1

// notRun is a trailer sent with an error if the function certainly did not run.
const notRun = "sharedtensor-not-run"

// ServiceName is the name of the gRPC service.
const ServiceName = "splitlearn.comm.ComputeService"

// Register adds the service to a gRPC server. The server must accept messages slightly larger than MessageBytes. It
// should use the codec of package bulk, which avoids copies of elements.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	desc := computepb.ComputeService_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	for i := range desc.Methods {
		if desc.Methods[i].MethodName == "Compute" {
			desc.Methods[i].Handler = handleCompute // the generated handler would copy
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
	in := &bulk.Message{Head: new(computepb.ComputeRequest), Field: dataField, Name: srv.(service).server.name(ctx)}
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
	defer in.Free()
	data := in.Data()
	if err := in.Name.Err(); err != nil {
		grpc.SetTrailer(ctx, metadata.Pairs(notRun, "1"))
		return nil, admission.Status(err)
	}
	j := sv.server.newJob(in.Head.(*computepb.ComputeRequest))
	out, err := j.run(ctx, sv.server.opts.MessageBytes, func(spec tensor.Spec, bytes int64, dev driver.Device) (*tensor.Tensor, error) {
		j.timing.in = data.Len()
		compression := j.request.GetMetadata()[keyCompression]
		if compression == "" && looksLikeZlib(data, bytes) {
			compression, j.packed = Zlib, true
		}
		if compression != "" {
			if err := j.take(decoderBytes); err != nil {
				return nil, err
			}
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
	return response, admission.Status(err)
}

// job is one request.
type job struct {
	server  *Server
	request *computepb.ComputeRequest
	known   bool // the server has the function
	ran     bool // the function was called
	packed  bool // the client compresses data without declaring it
	stream  bool // the argument is sent in chunks
	sender  rights.Identity
	charge  *admission.Charge // of the argument
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
	j.sender = rights.Sender(ctx)
	j.charge = s.pending.Open(j.sender)
	defer j.charge.Close()
	model := cmp.Or(r.GetModelId(), s.opts.Default)
	f, err := s.find(ctx, model)
	j.counted = s.recorders(model, err == nil)
	for _, c := range j.counted {
		c.begin()
	}
	if err != nil {
		return nil, err
	}
	if r.ForwardId != nil || r.GetTrainingMode() || r.GetUseCache() || len(r.GetPastKeyValues()) > 0 {
		return nil, fmt.Errorf("%w: training and generation caches", ErrNotServed)
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
	if j.stream { // the client may be slow, so no worker is held while it sends
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
		if err := j.take(bytes); err != nil {
			return nil, err
		}
		if in, err = read(spec, bytes, dev); err != nil {
			return nil, err
		}
		defer in.Close()
		j.timing.decode = lap(&clock)
	}
	j.ran = true
	out, err := s.call(ctx, f, model, in)
	j.timing.compute = lap(&clock)
	return out, err
}

// take charges bytes of the argument.
func (j *job) take(bytes int64) error {
	if err := j.charge.Add(bytes); err != nil {
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	return nil
}

// lap returns the time since *clock and sets it to now.
func lap(clock *time.Time) time.Duration {
	now := time.Now()
	d := now.Sub(*clock)
	*clock = now
	return d
}

// end records the outcome of the request.
func (j *job) end(err error) {
	for _, c := range j.counted {
		c.end(j.timing, err != nil)
	}
}

// response returns the head of the response and the elements of the result. It takes ownership of out.
func (j *job) response(out *tensor.Tensor) (*computepb.ComputeResponse, mem.Buffer, error) {
	var err error
	metadata := j.request.GetMetadata()
	var converted *admission.Charge
	if metadata[keyAcceptDType] != "any" && out.DType() != tensor.Float32 {
		if converted, err = j.result(4 * out.NumElements()); err == nil {
			out, err = toFloat32(out, j.server.opts.Device)
		} else {
			_ = out.Close() // best effort: the caller receives the error
		}
		if err != nil {
			converted.Close()
			return nil, nil, err
		}
	}
	queue, computation := float32(j.timing.queue.Seconds()*1000), float32(j.timing.compute.Seconds()*1000)
	head := &computepb.ComputeResponse{RequestId: j.request.RequestId, ComputeTimeMs: &computation, QueueTimeMs: &queue}
	head.Shape, head.WideShape = shapeFields(out.Shape())
	if out.DType() != tensor.Float32 {
		head.Metadata = map[string]string{keyDType: out.DType().String()}
	}
	buffer, err := bulk.BorrowTensor(out, j.server.opts.Device)
	if converted == nil {
		return head, buffer, err
	}
	if err != nil {
		converted.Close()
		return nil, nil, err
	}
	return head, bulk.Borrow(buffer.ReadOnlyData(), func() { buffer.Free(); converted.Close() }), nil
}

// result returns a charge for bytes of a result that are in this process until the client has read them. The caller closes it, also
// after an error.
func (j *job) result(bytes int64) (*admission.Charge, error) {
	charge := j.server.pending.Open(j.sender)
	if err := charge.Add(bytes); err != nil {
		return charge, fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	return charge, nil
}

// compressed returns the compressed elements of a result, and false if compressing does not pay. always compresses them in any case.
// It borrows buffer.
func (j *job) compressed(buffer mem.Buffer, compression string, always bool) (mem.BufferSlice, bool, error) {
	if compression == "" {
		return nil, false, nil
	}
	charge, err := j.result(int64(buffer.Len()))
	if err != nil {
		charge.Close()
		return nil, false, err
	}
	packed, ok := []byte(nil), always
	if always {
		packed = compress(buffer.ReadOnlyData(), compression)
	} else {
		packed, ok = deflate(buffer.ReadOnlyData(), compression)
	}
	if !ok {
		charge.Close()
		return nil, false, nil
	}
	charge.Release(int64(buffer.Len() - len(packed)))
	return mem.BufferSlice{bulk.Borrow(packed, charge.Close)}, true, nil
}

// message returns the response as one message. It takes ownership of out.
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
	if j.packed {
		compression = Zlib // not declared, and always compressed
	}
	data := mem.BufferSlice{buffer}
	packed, ok, err := j.compressed(buffer, compression, j.packed)
	if err != nil {
		buffer.Free()
		return nil, err
	}
	if ok {
		if head.Metadata == nil && !j.packed {
			head.Metadata = make(map[string]string, 1)
		}
		if !j.packed {
			head.Metadata[keyCompression] = compression
		}
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
	requests := bulk.NewPump(call.Context(), call, newRequest, dataField)
	request, first, err := requests.Next(sv.server.opts.Stall)
	if err != nil {
		return admission.Status(err)
	}
	defer first.Free() // the job keeps its head
	j := sv.server.newJob(request)
	j.stream = true
	out, err := j.run(call.Context(), sv.server.opts.StreamBytes, func(spec tensor.Spec, bytes int64, dev driver.Device) (*tensor.Tensor, error) {
		if c := j.request.GetMetadata()[keyCompression]; c != "" {
			return nil, fmt.Errorf("%w: compression in ComputeStream", ErrNotServed)
		}
		return j.receive(first, spec, bytes, dev, sv.server.chunks(requests))
	})
	if err == nil {
		err = j.send(call, out)
	}
	j.end(err)
	if err != nil && !j.ran {
		call.SetTrailer(metadata.Pairs(notRun, "1"))
	}
	return admission.Status(err)
}

// chunks returns a function that receives the next chunk and fails if the transfer is too slow.
func (s *Server) chunks(requests *bulk.Pump[*computepb.ComputeRequest]) func() (*bulk.Message, error) {
	meter := admission.NewMeter(admission.Rate{Bytes: s.opts.MinRate, Grace: s.opts.Stall})
	return func() (*bulk.Message, error) {
		begin := time.Now()
		_, m, err := requests.Next(meter.Left())
		if err != nil {
			return nil, err
		}
		if err := meter.Add(m.Size(), time.Since(begin)); err != nil {
			m.Free()
			return nil, err
		}
		return m, nil
	}
}

// receive fills a tensor from chunks. It borrows first, the first chunk.
func (j *job) receive(first *bulk.Message, spec tensor.Spec, bytes int64, dev driver.Device, next func() (*bulk.Message, error)) (*tensor.Tensor, error) {
	charge := j.take
	if s := j.server; s.opts.Arrivals != nil {
		dev = s.opts.Arrivals
	} else if err := j.take(bytes); err != nil { // the device allocates all memory at once
		return nil, err
	} else {
		charge = nil
	}
	t, err := newTensor(dev, spec, bytes)
	if err != nil {
		return nil, err
	}
	if err := fill(t, first, bytes, charge, next); err != nil {
		t.Close()
		return nil, err
	}
	j.timing.in = int(bytes)
	return t, nil
}

// send sends a result in chunks and takes ownership of it.
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

// HealthCheck reports whether Compute would work.
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

// GetStatistics returns how often functions ran and how long they took.
func (sv service) GetStatistics(ctx context.Context, r *computepb.StatisticsRequest) (*computepb.StatisticsResponse, error) {
	if err := sv.server.allow(ctx, r.GetModelId()); err != nil {
		return nil, admission.Status(err)
	}
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

// unexpected turns io.EOF into an error if more data was expected.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: the data ended early", ErrInvalid)
	}
	return err
}

// Errors of this package, wrapped with details. They are sent as gRPC codes.
var (
	// ErrInvalid is returned for a request with data, shape and metadata that contradict each other.
	ErrInvalid = admission.NewError(admission.Invalid, "invalid request")
	// ErrNotFound is returned for a model_id that the server does not have.
	ErrNotFound = admission.NewError(admission.NotFound, "no such function")
	// ErrOverloaded is returned if the server's queue is full. The function did not run.
	ErrOverloaded = admission.NewError(admission.Unavailable, "too many requests wait")
	// ErrNotReady is returned if the server is being set up, failed to set up, or is shutting down. The function did
	// not run.
	ErrNotReady = admission.NewError(admission.Unavailable, "not ready")
	// ErrTooLarge is returned for a tensor that exceeds the limit or needs ComputeStream.
	ErrTooLarge = admission.NewError(admission.TooLarge, "too large")
	// ErrNotServed is returned for a request for training or with a generation cache.
	ErrNotServed = admission.NewError(admission.NotServed, "not served here")
	// ErrPanic is returned if the function panicked.
	ErrPanic = errors.New("the function panicked")
	// ErrUnknown is returned if a function that is not idempotent may or may not have run.
	ErrUnknown = errors.New("unknown whether the function ran")
	// ErrClosed is returned by a closed client or server.
	ErrClosed = errors.New("closed")
)

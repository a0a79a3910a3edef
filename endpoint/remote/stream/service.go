package stream

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
)

// service implements sharedtensor.stream.v1.TensorStream.
type service struct {
	streampb.UnimplementedTensorStreamServer
	*Server
}

func newChunk() *streampb.Chunk { return new(streampb.Chunk) }

// Put receives a set atomically.
func (s service) Put(call grpc.BidiStreamingServer[streampb.Chunk, streampb.PutReply]) error {
	return admission.Status(s.put(call))
}

func (s service) put(call grpc.BidiStreamingServer[streampb.Chunk, streampb.PutReply]) error {
	if s.opts.Sink == nil {
		return fmt.Errorf("%w: this server accepts no tensors", ErrNotServed)
	}
	if err := s.checkWrite(call.Context()); err != nil {
		return err
	}
	chunks := bulk.NewPump(call.Context(), call, newChunk, dataField)
	first, message, err := chunks.Next(s.limits.Stall)
	if err != nil {
		return err
	}
	message.Free()
	d, err := describe(first.GetSet(), s.limits)
	if err != nil {
		return err
	}
	b, err := s.beginUpload(call.Context(), d)
	if err != nil {
		return err
	}
	if b.outcome != nil {
		return s.repeat(call, chunks, d, b.outcome)
	}
	taken, err := s.receive(call, chunks, b)
	if err != nil {
		s.uploads.leave(b.upload)
		return err
	}
	return s.handOver(call, b.upload, taken)
}

// beginUpload finds or creates the upload of a call. If another call is passing the set to the sink, it waits for the
// outcome.
func (s service) beginUpload(ctx context.Context, d *description) (begun, error) {
	timer := time.NewTimer(s.limits.Stall)
	defer timer.Stop()
	for {
		b, err := s.uploads.begin(admission.Sender(ctx), d)
		if err != nil || b.busy == nil {
			return b, err
		}
		select {
		case <-b.busy:
		case <-ctx.Done():
			return begun{}, context.Cause(ctx)
		case <-timer.C:
			return begun{}, errAgain
		}
	}
}

// arrival counts what one call has received.
type arrival struct {
	writer int
	bytes  uint64
}

// receive processes chunks until the set is complete.
func (s service) receive(call grpc.BidiStreamingServer[streampb.Chunk, streampb.PutReply], chunks *bulk.Pump[*streampb.Chunk], b begun) (a arrival, err error) {
	w := b.upload
	a.writer = b.writer
	if err := call.Send(&streampb.PutReply{Credit: uint64(s.limits.Window), Resume: b.resume}); err != nil {
		return a, err
	}
	pace, owed := newPace(s.limits), uint64(0)
	for {
		chunk, message, err := next(pace, chunks, true)
		if errors.Is(err, io.EOF) {
			return a, w.missing()
		}
		if err != nil {
			return a, err
		}
		data := message.TakeData()
		n := uint64(data.Len())
		if err := w.write(b.writer, chunk.GetTensor(), chunk, data); err != nil {
			return a, err
		}
		a.bytes += n
		if owed += n; owed >= uint64(s.limits.Window)/4 {
			if err := call.Send(&streampb.PutReply{Credit: owed}); err != nil {
				return a, err
			}
			owed = 0
		}
	}
}

// handOver passes a complete set to the sink. It continues if the client leaves: the set is accepted or refused, and a
// call with the same id receives the outcome.
func (s service) handOver(call grpc.BidiStreamingServer[streampb.Chunk, streampb.PutReply], w *waiting, a arrival) error {
	sd, err := s.uploads.deliver(w, a.writer)
	if errors.Is(err, errTakenOver) {
		s.uploads.leave(w)
		return err
	}
	if err != nil {
		s.uploads.finished(w, nil)
		return err
	}
	d := w.description
	version, err := s.opts.Sink.Receive(context.WithoutCancel(call.Context()), &Set{ID: d.id, Name: d.name, Version: d.version, Tensors: sd})
	if err != nil {
		s.uploads.finished(w, nil)
		return err
	}
	done := &streampb.Done{Version: version, Bytes: a.bytes}
	s.uploads.finished(w, done)
	return call.Send(&streampb.PutReply{Done: done})
}

// Get sends a set.
func (s service) Get(call grpc.BidiStreamingServer[streampb.GetRequest, streampb.Chunk]) error {
	return admission.Status(s.get(call))
}

func (s service) get(call grpc.BidiStreamingServer[streampb.GetRequest, streampb.Chunk]) error {
	if s.opts.Source == nil {
		return fmt.Errorf("%w: this server has no tensors to send", ErrNotServed)
	}
	request, err := call.Recv()
	if err != nil {
		return err
	}
	set, err := s.opts.Source.Set(call.Context(), Request{
		Name: request.GetName(), Version: request.GetVersion(), Tensors: request.GetTensors(), Parameters: request.GetParameters(),
	})
	if err != nil {
		return err
	}
	defer set.Close()
	if err := call.Send(&streampb.Chunk{Set: describeSet(set)}); err != nil {
		return err
	}
	granted := newCredit()
	granted.grant(request.GetCredit())
	go func() { // ends with the call
		for {
			more, err := call.Recv()
			if err != nil {
				granted.end(err)
				return
			}
			granted.grant(more.GetCredit())
		}
	}()
	resume := request.GetResume()
	if request.GetId() != set.ID || set.ID == "" {
		resume = nil
	}
	out := &sender{ctx: call.Context(), call: call, credit: granted, stall: s.limits.Stall, host: s.opts.Host}
	return out.set(set, resume)
}

// Local returns the owner's socket to clients on this host.
func (s service) Local(_ context.Context, request *streampb.LocalRequest) (*streampb.LocalReply, error) {
	proof := hostProof(s.opts.Device)
	if s.opts.Socket == nil || proof == nil || subtle.ConstantTimeCompare(proof, request.GetHostProof()) != 1 {
		return &streampb.LocalReply{}, nil
	}
	return &streampb.LocalReply{Socket: s.opts.Socket()}, nil
}

// Exchange answers each tensor with the processor.
func (s service) Exchange(call grpc.BidiStreamingServer[streampb.Chunk, streampb.Chunk]) error {
	if s.opts.Processor == nil {
		return admission.Status(fmt.Errorf("%w: this server processes no tensors", ErrNotServed))
	}
	return admission.Status(s.exchange(call))
}

// exchange receives on one goroutine and answers on this one. Credit limits how far the client may send ahead: the
// credit for the last chunk of a tensor is granted when the tensor was answered.
func (s service) exchange(call grpc.BidiStreamingServer[streampb.Chunk, streampb.Chunk]) error {
	sending := &lockedStream{call: call}
	granted := newCredit()
	in := newIncoming(call.Context(), s.limits, s.pool, s.opts.Device, s.opts.Eager, granted, sending.grant)
	defer in.free()
	if err := sending.grant(uint64(s.limits.Window)); err != nil {
		return err
	}
	go in.run(bulk.NewPump(call.Context(), call, newChunk, dataField)) // ends with the call
	out := &sender{ctx: call.Context(), call: sending, credit: granted, stall: s.limits.Stall, host: s.opts.Host}
	for {
		next, err := in.next(call.Context())
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		result, err := s.process(call.Context(), next.item)
		next.done()
		if err != nil {
			return fmt.Errorf("tensor %q: %w", next.item.ID, err)
		}
		if err := out.tensor(next.index, result, nil, specOf(next.item.ID, result, correlationOf(next.item))); err != nil {
			return err
		}
		if err := sending.grant(next.owed); err != nil {
			return err
		}
	}
}

// lockedStream allows two goroutines to send on one call.
type lockedStream struct {
	mu   sync.Mutex
	call bulk.Stream
}

// SendMsg sends a message.
func (l *lockedStream) SendMsg(m any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.call.SendMsg(m)
}

// grant grants the peer credit.
func (l *lockedStream) grant(bytes uint64) error {
	if bytes == 0 {
		return nil
	}
	return l.SendMsg(&streampb.Chunk{Credit: bytes})
}

// hostProof returns a value that only processes of this host can compute, or nil if the host has no unique ID.
func hostProof(dev driver.Device) []byte {
	uuid := dev.Info().UUID
	if uuid.IsZero() {
		return nil
	}
	sum := sha256.Sum256(append([]byte("sharedtensor host "), uuid[:]...))
	return sum[:]
}

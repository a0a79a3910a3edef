package stream

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pump"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
)

// service is sharedtensor.stream.v1.TensorStream.
type service struct {
	streampb.UnimplementedTensorStreamServer
	*Server
}

func newChunk() *streampb.Chunk { return new(streampb.Chunk) }

// Put takes a set, whole or not at all.
func (s service) Put(call grpc.BidiStreamingServer[streampb.Chunk, streampb.PutReply]) error {
	return statusOf(s.put(call))
}

func (s service) put(call grpc.BidiStreamingServer[streampb.Chunk, streampb.PutReply]) error {
	if s.opts.Sink == nil {
		return fmt.Errorf("%w: this server takes no tensors", ErrNotServed)
	}
	chunks := pump.New(call.Context(), call, newChunk, dataField)
	first, message, err := chunks.Next(s.limits.Stall)
	if err != nil {
		return err
	}
	message.Free()
	d, err := describe(first.GetSet(), s.limits)
	if err != nil {
		return err
	}
	w, done, err := s.uploads.begin(d)
	if err != nil {
		return err
	}
	if done != nil {
		return call.Send(&streampb.PutReply{Done: done})
	}
	taken, err := s.receive(call, chunks, w)
	if err != nil {
		s.uploads.leave(w)
		return err
	}
	return s.handOver(call, w, taken)
}

// arrival is what one call has brought.
type arrival struct {
	writer int
	bytes  uint64
}

// receive takes chunks until all is there.
func (s service) receive(call grpc.BidiStreamingServer[streampb.Chunk, streampb.PutReply], chunks *pump.Pump[*streampb.Chunk], w *waiting) (a arrival, err error) {
	writer, resume, err := w.begin()
	if err != nil {
		return a, err
	}
	a.writer = writer
	if err := call.Send(&streampb.PutReply{Credit: uint64(s.limits.Window), Resume: resume}); err != nil {
		return a, err
	}
	owed := uint64(0)
	for {
		chunk, message, err := chunks.Next(s.limits.Stall)
		if errors.Is(err, io.EOF) {
			return a, w.missing()
		}
		if err != nil {
			return a, err
		}
		data := message.TakeData()
		n := uint64(data.Len())
		if err := w.write(writer, chunk.GetTensor(), chunk, data); err != nil {
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

// handOver gives a complete set to the sink. From here on the client's leaving changes nothing: the set is taken or
// refused, and whoever asks again with the same id gets to know.
func (s service) handOver(call grpc.BidiStreamingServer[streampb.Chunk, streampb.PutReply], w *waiting, a arrival) error {
	sd, err := w.finish(a.writer)
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
	return statusOf(s.get(call))
}

func (s service) get(call grpc.BidiStreamingServer[streampb.GetRequest, streampb.Chunk]) error {
	if s.opts.Source == nil {
		return fmt.Errorf("%w: this server gives no tensors", ErrNotServed)
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

// Local tells a client of this host where the owner is.
func (s service) Local(_ context.Context, request *streampb.LocalRequest) (*streampb.LocalReply, error) {
	proof := hostProof(s.opts.Device)
	if s.opts.Socket == nil || proof == nil || subtle.ConstantTimeCompare(proof, request.GetHostProof()) != 1 {
		return &streampb.LocalReply{}, nil
	}
	return &streampb.LocalReply{Socket: s.opts.Socket()}, nil
}

// Exchange answers each tensor.
func (s service) Exchange(call grpc.BidiStreamingServer[streampb.Chunk, streampb.Chunk]) error {
	if s.opts.Processor == nil {
		return statusOf(fmt.Errorf("%w: this server processes no tensors", ErrNotServed))
	}
	return statusOf(s.exchange(call))
}

// exchange receives in one goroutine and answers in this one. What the client may send ahead is bounded by its credit:
// that for the last chunk of a tensor is granted when the tensor was answered.
func (s service) exchange(call grpc.BidiStreamingServer[streampb.Chunk, streampb.Chunk]) error {
	sending := &lockedStream{call: call}
	granted := newCredit()
	in := newIncoming(s.limits, s.budget, s.opts.Device, granted, sending.grant)
	defer in.free()
	if err := sending.grant(uint64(s.limits.Window)); err != nil {
		return err
	}
	go in.run(pump.New(call.Context(), call, newChunk, dataField)) // ends with the call
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

// lockedStream lets two goroutines send over one call.
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

// grant lets the peer send more.
func (l *lockedStream) grant(bytes uint64) error {
	if bytes == 0 {
		return nil
	}
	return l.SendMsg(&streampb.Chunk{Credit: bytes})
}

// hostProof is what only processes of this host can work out; nil where the host has no name for itself.
func hostProof(dev driver.Device) []byte {
	uuid := dev.Info().UUID
	if uuid.IsZero() {
		return nil
	}
	sum := sha256.Sum256(append([]byte("sharedtensor host "), uuid[:]...))
	return sum[:]
}

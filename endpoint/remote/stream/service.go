package stream

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/module"
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
	if err := s.checkWrite(call.Context(), ""); err != nil {
		return err
	}
	chunks := bulk.NewPump(call.Context(), call, newChunk, dataField)
	first, message, err := chunks.Next(s.limits.Stall)
	if err != nil {
		return err
	}
	message.Free()
	m, err := describe(first.GetSet(), s.limits)
	if err != nil {
		return err
	}
	if err := s.checkWrite(call.Context(), m.Name); err != nil {
		return err
	}
	b, err := s.begin(call.Context(), first.GetSet().GetId(), m)
	if err != nil {
		return err
	}
	if r := b.Repeat; r != nil {
		if _, err := s.receive(call, chunks, r.Resume, r.Write); err != nil {
			return err
		}
		done, err := r.Result()
		if err != nil {
			return err
		}
		return call.Send(&streampb.PutReply{Done: done})
	}
	n, err := s.receive(call, chunks, b.Resume, func(piece *modelwire.Piece) error { return b.Transfer.Write(b.Writer, piece) })
	if err == nil {
		err = b.Transfer.Missing()
	}
	if err != nil {
		s.transfers.Leave(b.Transfer)
		return err
	}
	// The sink continues if the client leaves: the set is accepted or refused, and a call with the same id receives the
	// outcome.
	done, err := s.transfers.Deliver(b.Transfer, b.Writer, func(sd *module.StateDict) (*streampb.Done, error) {
		version, err := s.opts.Sink.Receive(context.WithoutCancel(call.Context()), &Set{ID: first.GetSet().GetId(), Name: m.Name, Version: m.Version, Tensors: sd})
		return &streampb.Done{Version: version, Bytes: n}, err
	})
	if err != nil {
		return err
	}
	return call.Send(&streampb.PutReply{Done: done})
}

// begin finds or creates the transfer of a call. If another call is passing the set to the sink, it waits for the
// outcome.
func (s service) begin(ctx context.Context, id string, m *modelwire.Manifest) (modelwire.Begun[*streampb.Done], error) {
	timer := time.NewTimer(s.limits.Stall)
	defer timer.Stop()
	for {
		b, err := s.transfers.Begin(rights.Sender(ctx), id, m)
		if err != nil || b.Busy == nil {
			return b, err
		}
		select {
		case <-b.Busy:
		case <-ctx.Done():
			return b, context.Cause(ctx)
		case <-timer.C:
			return b, errAgain
		}
	}
}

// receive passes the chunks of a call to write until the client ends, and returns the number of bytes.
func (s service) receive(
	call grpc.BidiStreamingServer[streampb.Chunk, streampb.PutReply], chunks *bulk.Pump[*streampb.Chunk], resume []modelwire.Position,
	write func(*modelwire.Piece) error,
) (bytes uint64, err error) {
	if err := call.Send(&streampb.PutReply{Credit: uint64(s.limits.Window), Resume: positionsOf(resume)}); err != nil {
		return 0, err
	}
	pace, owed := newPace(s.limits), uint64(0)
	for {
		chunk, message, err := next(pace, chunks, true)
		if errors.Is(err, io.EOF) {
			return bytes, nil
		}
		if err != nil {
			return bytes, err
		}
		n := uint64(message.Data().Len())
		err = write(pieceOf(int(chunk.GetTensor()), chunk, message.Data()))
		message.Free()
		if err != nil {
			return bytes, err
		}
		bytes += n
		if owed += n; owed >= uint64(s.limits.Window)/4 {
			if err := call.Send(&streampb.PutReply{Credit: owed}); err != nil {
				return bytes, err
			}
			owed = 0
		}
	}
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
	contain.Go(func() { // ends with the call
		for {
			more, err := call.Recv()
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%w: the client closed its side of the call and grants no more credit", ErrInvalid)
			}
			if err != nil {
				granted.end(err)
				return
			}
			granted.grant(more.GetCredit())
		}
	}, granted.end)
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
	if s.opts.Socket == nil || proof == nil || !admission.SameSecret(request.GetHostProof(), proof) {
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
	chunks := bulk.NewPump(call.Context(), call, newChunk, dataField)
	contain.Go(func() { in.run(chunks) }, in.end) // ends with the call
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

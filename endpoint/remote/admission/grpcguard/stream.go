package grpcguard

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
)

// stream is one call. It is shared by the transport, until the call's context ends, the handler, and the answer, until it is
// written. The charge is closed when all have ended, because a handler may hold a message after its client has left, and the
// transport an answer after the handler has returned.
type stream struct {
	call  *admission.Call
	limit int64 // maximum message size
	rate  admission.Rate

	mu       sync.Mutex
	charged  *admission.Charge
	messages messages
	held     int64     // charge of the message that the handler is processing; messages of package bulk own theirs
	first    bool      // a message was received: its charge ends with the call, because handlers keep it
	decoded  int64     // charge of the message that is being decoded, in addition to its frames
	costly   error     // why it was not charged
	reading  bool      // the handler is waiting for a message
	deadline time.Time // for the next byte of an unfinished message, while the handler waits
	err      error     // why the call failed
	writer   statusWriter
	parties  int
	single   bool // the client must send one message, so a missing message counts as slow

	cancelled bool // the client has reset the stream
	conn      *conn
	id        uint32
	answer    sent
	reset     time.Time // when the answer was found to be late; used only by Guard.Run
}

// statusWriter ends a call with a status. Streams of the transport implement it.
type statusWriter interface {
	WriteStatus(st *status.Status) error
}

// arrived passes bytes of the call to messages. They were charged with their frame.
func (s *stream) arrived(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return // the transport discards the remaining bytes
	}
	now := time.Now()
	s.deadline = s.rate.Extend(s.deadline, now, len(p))
	s.messages.add(p, func() { s.deadline = now.Add(s.rate.Grace) }, func(size int64) {
		if size > s.limit {
			s.failLocked(fmt.Errorf("%w: a message of %d bytes is over this client's limit of %d", admission.ErrLimit, size, s.limit))
		}
	})
}

// charge charges the memory that the transport keeps for a frame.
func (s *stream) charge(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	if err := s.charged.Add(n); err != nil {
		s.failLocked(err)
		return
	}
	s.messages.current += n
}

// check fails a call if its handler waits and its message arrives too slowly. If the method requires a message, a
// missing message also fails the call.
func (s *stream) check(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && s.reading && (s.single || s.messages.partial()) && now.After(s.deadline) {
		s.failLocked(fmt.Errorf("%w: a message did not arrive in time: see --min-rate and --stall", admission.ErrSlow))
	}
}

// failLocked ends the call. The goroutine that reads the connection may call it, so another goroutine sends the status.
func (s *stream) failLocked(err error) {
	if s.err == nil {
		s.err = err
		contain.Go(func() { s.call.Fail(err) }, nil)
	}
}

// failed sends the status to the client. It is the call's OnFail function.
func (s *stream) failed(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	writer := s.writer
	s.mu.Unlock()
	if writer != nil {
		_ = writer.WriteStatus(status.Convert(admission.Status(err))) // best effort: the client may have left
	}
}

// enter records that the handler of the call has started.
func (s *stream) enter(ctx context.Context, single bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return admission.Status(s.err)
	}
	if s.parties == 0 {
		return status.FromContextError(context.Canceled).Err()
	}
	s.parties++
	if !s.cancelled && s.conn.expect(s) {
		s.parties++
	}
	s.single = single
	s.writer, _ = grpc.ServerTransportStreamFromContext(ctx).(statusWriter)
	return nil
}

// leave records that the transport or the handler has ended. The last one releases everything.
func (s *stream) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parties--; s.parties == 0 {
		s.charged.Close()
		s.call.Leave()
	}
}

// receive calls recv, which receives m. A message of package bulk owns its charge. Of other messages, the first remains charged
// until the call ends, and each later one until the next is received.
func (s *stream) receive(m any, packed bool, recv func(any) error) error {
	s.mu.Lock()
	s.reading, s.deadline = true, time.Now().Add(s.rate.Grace)
	s.mu.Unlock()
	err := recv(m)
	if c, ok := m.(*bulk.Charged); ok {
		m = c.Message
	}
	extra := int64(0)
	if err == nil && packed {
		extra = sizeOf(m)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading = false
	s.charged.Release(s.held)
	s.held = 0
	decoded, costly := s.decoded, s.costly
	s.decoded, s.costly = 0, nil
	if err != nil {
		s.charged.Release(decoded)
		switch {
		case s.err != nil:
			err = admission.Status(s.err)
		case costly != nil:
			err = admission.Status(costly)
		}
		return err
	}
	s.held = s.messages.next() + decoded
	if extra > s.limit {
		return admission.Status(fmt.Errorf("%w: an inflated message of %d bytes is over this client's limit of %d", admission.ErrLimit, extra, s.limit))
	}
	if extra -= s.held; extra > 0 {
		if err := s.charged.Add(extra); err != nil {
			return admission.Status(err)
		}
		s.held += extra
	}
	if owner, ok := m.(interface{ Own(release func()) }); ok {
		n := s.held
		s.held = 0
		owner.Own(func() { s.charged.Release(n) })
	} else if !s.first {
		s.first, s.held = true, 0
	}
	return nil
}

// chargeDecoded charges memory of the message that is being decoded. It is the function of bulk.Charged.
func (s *stream) chargeDecoded(n int64) error {
	err := s.charged.Add(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.costly = err
		return err
	}
	s.decoded += n
	return nil
}

// sizeOf returns the size of an inflated message.
func sizeOf(m any) int64 {
	switch m := m.(type) {
	case interface{ Size() int }:
		return int64(m.Size())
	case proto.Message:
		return int64(proto.Size(m))
	}
	return 0
}

// guardedStream charges the messages of a call.
type guardedStream struct {
	grpc.ServerStream
	*stream
	packed    bool
	receiving bulk.Charged
}

// RecvMsg implements grpc.ServerStream.
func (g *guardedStream) RecvMsg(m any) error {
	g.receiving.Message = m
	return g.receive(&g.receiving, g.packed, g.ServerStream.RecvMsg)
}

// SendMsg implements grpc.ServerStream. The call is reset if the client does not read for the grace of the rate.
func (g *guardedStream) SendMsg(m any) error {
	g.answer.begin(false)
	return g.ServerStream.SendMsg(m)
}

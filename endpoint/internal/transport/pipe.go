package transport

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

// A client of a server in its own process has an ordinary session, so leases, references, watchers, streams and tasks
// are counted and end in the same way. Only the transport differs: frames pass through a pair of queues, and storages
// are shared directly instead of as descriptors. A second mapping would be useless, and a driver may refuse to import
// memory that its own process has exported.

// Pipe is one end of a connection within the process.
type Pipe struct {
	in, out *queue
	bytes   int64 // maximum size of a frame
	items   int   // maximum number of storages of a frame
}

// NewPipe returns two connected ends. Both use the lower of the two limits.
func NewPipe(a, b wire.Limits) (*Pipe, *Pipe) {
	a, b = a.WithDefaults(), b.WithDefaults()
	bytes, items := min(a.Frame, b.Frame), min(a.Files, b.Files)
	there, back := newQueue(), newQueue()
	return &Pipe{in: back, out: there, bytes: bytes, items: items}, &Pipe{in: there, out: back, bytes: bytes, items: items}
}

// Peer implements Conn. It returns the credentials of this process.
func (*Pipe) Peer() wire.Credentials {
	return wire.Credentials{PID: int32(os.Getpid()), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
}

// Send implements Conn. It does not block: the limits of requests in flight bound the queue. It ignores descriptors
// because their memory is shared directly.
func (p *Pipe) Send(kind wire.Kind, id uint64, body []byte, _ ...*os.File) error {
	return p.SendStorages(wire.Frame{Kind: kind, ID: id, Body: body}, nil)
}

// SendContext implements Conn.
func (p *Pipe) SendContext(_ context.Context, kind wire.Kind, id uint64, body []byte, _ ...*os.File) error {
	return p.SendStorages(wire.Frame{Kind: kind, ID: id, Body: body}, nil)
}

// SendLater implements Conn.
func (p *Pipe) SendLater(kind wire.Kind, id uint64, body []byte, _ ...*os.File) error {
	return p.SendStorages(wire.Frame{Kind: kind, ID: id, Body: body}, nil)
}

// SendStorages sends a frame with storages and the frame's context. It borrows the body and the storages: the receiver
// gets a copy and new references.
func (p *Pipe) SendStorages(frame wire.Frame, storages []*tensor.Storage) error {
	switch {
	case int64(len(frame.Body)) > p.bytes:
		return fmt.Errorf("send %s frame of %d bytes, the limit is %d: %w", frame.Kind, len(frame.Body), p.bytes, wire.ErrTooLarge)
	case len(storages) > p.items:
		return fmt.Errorf("send %s frame with %d storages, the limit is %d: %w", frame.Kind, len(storages), p.items, wire.ErrTooLarge)
	}
	if frame.Body == nil {
		frame.Body = []byte{0xa0}
	}
	frame.Body = append([]byte(nil), frame.Body...)
	if len(storages) > 0 {
		shared := make([]io.Closer, len(storages))
		for i, s := range storages {
			shared[i] = s.Retain()
		}
		frame.Files = wire.InProcessFiles(shared)
	}
	if err := p.out.put(frame); err != nil {
		frame.Files.Close()
		return fmt.Errorf("send %s frame: %w", frame.Kind, err)
	}
	return nil
}

// Receive implements Conn.
func (p *Pipe) Receive() (wire.Frame, error) { return p.in.take() }

// Buffered implements Conn.
func (p *Pipe) Buffered() bool { return p.in.ready() }

// Close implements Conn. The peer can still receive earlier frames.
func (p *Pipe) Close() error {
	p.out.finish()
	p.in.abandon()
	return nil
}

// queue is a ring buffer of the frames in one direction.
type queue struct {
	mu     sync.Mutex
	change sync.Cond
	ring   []wire.Frame // len is a power of two, or 0
	first  int          // index of the oldest frame
	count  int          // number of frames
	ended  error        // error of the receiver after the last frame
	shut   error        // error of the sender
}

// minRing is the minimum size of a ring.
const minRing = 64

func newQueue() *queue {
	q := new(queue)
	q.change.L = &q.mu
	return q
}

// put adds a frame unless one of the ends was closed. On success it takes ownership of the frame.
func (q *queue) put(f wire.Frame) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shut != nil {
		return q.shut
	}
	if q.count == len(q.ring) {
		q.resizeLocked(max(minRing, 2*len(q.ring)))
	}
	*q.atLocked(q.count) = f
	q.count++
	q.change.Signal()
	return nil
}

// atLocked returns the slot of frame i, counted from the oldest.
func (q *queue) atLocked(i int) *wire.Frame { return &q.ring[(q.first+i)&(len(q.ring)-1)] }

// resizeLocked moves the frames to a ring of the given size.
func (q *queue) resizeLocked(size int) {
	ring := make([]wire.Frame, size)
	for i := range q.count {
		ring[i] = *q.atLocked(i)
	}
	q.ring, q.first = ring, 0
}

// take waits for the next frame and removes it.
func (q *queue) take() (wire.Frame, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.count == 0 {
		if q.ended != nil {
			return wire.Frame{}, q.ended
		}
		q.change.Wait()
	}
	place := q.atLocked(0)
	f := *place
	*place = wire.Frame{} // do not keep its memory reachable
	q.first = (q.first + 1) & (len(q.ring) - 1)
	q.count--
	if q.count <= len(q.ring)/8 && len(q.ring) > minRing { // shrink after a burst
		q.resizeLocked(len(q.ring) / 2)
	}
	return f, nil
}

// ready reports whether take would return at once.
func (q *queue) ready() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count > 0 || q.ended != nil
}

// finish closes the sender's end: the receiver gets the remaining frames and then the end.
func (q *queue) finish() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endLocked(io.EOF, os.ErrClosed)
}

// abandon closes the receiver's end and drops the remaining frames.
func (q *queue) abandon() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endLocked(os.ErrClosed, syscall.EPIPE)
	q.ended = os.ErrClosed
	for i := range q.count {
		q.atLocked(i).Files.Close()
	}
	q.ring, q.first, q.count = nil, 0, 0
}

// endLocked closes the queue with the errors of receiver and sender. The first errors win.
func (q *queue) endLocked(ended, shut error) {
	if q.shut == nil {
		q.ended, q.shut = ended, shut
		q.change.Broadcast()
	}
}

// NewPipeReceiver returns the [Receiver] of a pipe, which passes each frame to dispatch. Only Run reads.
func NewPipeReceiver(p *Pipe, dispatch func(wire.Frame) error) Receiver {
	return pipeReceiver{p, dispatch}
}

type pipeReceiver struct {
	pipe     *Pipe
	dispatch func(wire.Frame) error
}

// Run implements Receiver.
func (r pipeReceiver) Run() error {
	for {
		frame, err := r.pipe.Receive()
		if err == nil {
			err = r.dispatch(frame)
		}
		if err != nil {
			return err
		}
	}
}

// Wait implements Receiver.
func (pipeReceiver) Wait(ctx context.Context, answer <-chan wire.Frame) (wire.Frame, bool, error) {
	select {
	case f, ok := <-answer:
		return f, ok, nil
	case <-ctx.Done():
		return wire.Frame{}, false, ended.Cause(ctx)
	}
}

// Listen implements Receiver. It does nothing because Run always receives events at once.
func (pipeReceiver) Listen(int) {}

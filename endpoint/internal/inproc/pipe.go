// Package inproc connects a client and a server of one process: the same frames as over a socket, through a pair of
// queues.
package inproc

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

// A client of a server in its own process has a session like any other, so leases, references, watchers, streams and
// tasks are counted and end alike. Only what lies between the two differs: frames pass through a pair of queues, and
// storages are shared with them where descriptors would go over a socket. (A driver may refuse to import what its own
// process exported, and a second mapping would be of no use.)

// Conn is what frames pass through: a [wire.Conn] or a [Pipe].
type Conn interface {
	// Send, SendContext, SendLater, Receive, Buffered, Peer and Close are those of [wire.Conn].
	Send(kind wire.Kind, id uint64, body []byte, files ...*os.File) error
	SendContext(ctx context.Context, kind wire.Kind, id uint64, body []byte, files ...*os.File) error
	SendLater(kind wire.Kind, id uint64, body []byte, files ...*os.File) error
	Receive() (wire.Frame, error)
	Buffered() bool
	Peer() wire.Credentials
	Close() error
}

// Receiver is a [wire.Receiver] or that of a pipe.
type Receiver interface {
	// Run, Wait and Listen are those of [wire.Receiver].
	Run() error
	Wait(ctx context.Context, answer <-chan wire.Frame) (wire.Frame, bool, error)
	Listen(more int)
}

// Pipe is one end of a connection within the process.
type Pipe struct {
	in, out *queue
	bytes   int64 // the most that a frame may have
	items   int   // the most that may go with it
}

// New connects two ends. The tighter one of two limits holds for both.
func New(a, b wire.Limits) (*Pipe, *Pipe) {
	bytes, items := FrameLimits(a)
	moreBytes, moreItems := FrameLimits(b)
	bytes, items = min(bytes, moreBytes), min(items, moreItems)
	there, back := newQueue(), newQueue()
	return &Pipe{in: back, out: there, bytes: bytes, items: items}, &Pipe{in: there, out: back, bytes: bytes, items: items}
}

// Peer implements Conn: it is this process.
func (*Pipe) Peer() wire.Credentials {
	return wire.Credentials{PID: int32(os.Getpid()), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
}

// Send implements Conn. It does not wait: what is on its way is bounded by what may be in flight. Descriptors stay
// behind: their memory is shared.
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

// SendStorages is Send of a frame with storages. It borrows the frame's body and the storages: what is sent has a copy
// and references. The frame's context, if any, goes along.
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

// Close implements Conn: what was sent before can still be received.
func (p *Pipe) Close() error {
	p.out.finish()
	p.in.abandon()
	return nil
}

// queue holds frames on their way to one end.
type queue struct {
	mu     sync.Mutex
	change sync.Cond
	frames []wire.Frame // from next on
	next   int
	ended  error // what the receiver gets when no frame is left
	shut   error // what the sender gets
}

// keptFrames is the room for frames that an empty queue keeps.
const keptFrames = 64

func newQueue() *queue {
	q := new(queue)
	q.change.L = &q.mu
	return q
}

// put takes the frame, unless one of the ends was closed.
func (q *queue) put(f wire.Frame) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shut != nil {
		return q.shut
	}
	q.frames = append(q.frames, f)
	q.change.Signal()
	return nil
}

// take waits for the next frame.
func (q *queue) take() (wire.Frame, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.next == len(q.frames) {
		if q.ended != nil {
			return wire.Frame{}, q.ended
		}
		q.change.Wait()
	}
	f := q.frames[q.next]
	q.frames[q.next] = wire.Frame{}
	if q.next++; q.next == len(q.frames) {
		q.frames, q.next = q.frames[:0], 0
		if cap(q.frames) > keptFrames {
			q.frames = nil
		}
	}
	return f, nil
}

// ready reports whether take would not wait.
func (q *queue) ready() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.next < len(q.frames) || q.ended != nil
}

// finish is the sender's end: the receiver gets what there is, and then the end.
func (q *queue) finish() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endLocked(io.EOF, os.ErrClosed)
}

// abandon is the receiver's end: nobody takes what there is.
func (q *queue) abandon() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endLocked(os.ErrClosed, syscall.EPIPE)
	q.ended = os.ErrClosed
	for _, f := range q.frames[q.next:] {
		f.Files.Close()
	}
	q.frames, q.next = nil, 0
}

// endLocked notes why nothing passes any more. The first reasons stay.
func (q *queue) endLocked(ended, shut error) {
	if q.shut == nil {
		q.ended, q.shut = ended, shut
		q.change.Broadcast()
	}
}

// NewReceiver returns the [Receiver] of a pipe, which passes each frame to dispatch. Only Run receives.
func NewReceiver(p *Pipe, dispatch func(wire.Frame) error) Receiver { return pipeReceiver{p, dispatch} }

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
		return wire.Frame{}, false, context.Cause(ctx)
	}
}

// Listen implements Receiver: events come at once anyway.
func (pipeReceiver) Listen(int) {}

// FrameLimits are the most bytes and descriptors of one frame.
func FrameLimits(l wire.Limits) (bytes int64, files int) {
	bytes, files = l.Frame, l.Files
	if bytes <= 0 {
		bytes = wire.DefaultFrame
	}
	if files <= 0 {
		files = wire.DefaultFiles
	}
	return bytes, files
}

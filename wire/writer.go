package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/internal/ended"
)

// copyBytes is the maximum size of a body that is copied into the queue behind its header; larger ones are written from
// their own memory. queueBytes is the size of the queue at which Send waits.
const (
	copyBytes  = 8 << 10
	queueBytes = 32 << 10
)

var queues = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// writer sends frames. A sender that finds no active writer writes. Frames of other senders are queued and leave in the
// writer's next system call without their senders waiting. A busy connection thus makes few system calls, an idle one
// holds no buffer, and no goroutine exists only to write.
type writer struct {
	mu      sync.Mutex
	free    sync.Cond // signalled when writing becomes false
	writing bool      // one goroutine uses sink
	sink    sink
	queue   *[]byte // whole frames; nil if empty
	queued  int     // number of frames in queue
	batched bool    // recent sends found queued frames of others
	broken  error   // the peer cannot find the next frame
	ring    ringWriter

	failed func(error) // called after a failed write without a waiting sender
}

// send sends one message. If now is false, it may stay in the queue until the next send or flush. A message without
// descriptors that fits is queued. Others, and the last message of a connection, wait for their turn and are in the
// kernel when send returns. If ctx ends while the socket is full, the message is either not sent, which is [ErrNotSent],
// or a goroutine sends the rest.
//
// err is the outcome of this message: with an error, the peer cannot have received it. end is not nil if the connection
// cannot be used further. It may be due to other messages that this sender has written, and then err is nil.
func (w *writer) send(ctx context.Context, kind Kind, id uint64, body, tail []byte, files []*os.File, now bool) (end, err error) {
	last := kind == KindGoodbye || kind == KindError && id == 0 // the connection is closed after it was written
	if len(files) == 0 && len(tail) == 0 && len(body) <= copyBytes && !last {
		return w.sendQueued(ctx, header{length: uint32(len(body)), kind: kind, id: id}, body, now)
	}
	fds, err := fileDescriptors(files)
	if err != nil {
		return nil, err
	}
	defer runtime.KeepAlive(files)

	w.mu.Lock()
	defer w.mu.Unlock()
	for w.writing && w.broken == nil {
		if err := w.waitLocked(ctx); err != nil {
			return nil, err
		}
	}
	if w.broken != nil {
		return nil, w.broken
	}
	w.writing = true
	if left, _, err := w.flushLocked(ctx, 0); left {
		return nil, notSent(ctx)
	} else if err != nil {
		w.done()
		return err, err
	}
	back, err := false, w.leaveRingLocked()
	if err == nil && len(tail) == 0 && len(body) <= copyBytes && !last {
		back, err = w.returnsLocked()
	}
	if err != nil {
		w.done()
		return err, err
	}
	w.mu.Unlock()
	started, whole, err := w.sendParts(ctx, kind, id, body, tail, fds, back)
	w.mu.Lock()
	switch {
	case errors.Is(err, errInterrupted) && started: // sendParts has left the rest to a goroutine
		return nil, nil
	case errors.Is(err, errInterrupted):
		w.leaveTurnLocked()
		return nil, notSent(ctx)
	case err != nil && !started && errors.Is(err, errRefused):
		w.leaveTurnLocked()
		return nil, err
	case err != nil:
		w.broken = err
		w.done()
		if whole {
			return err, nil
		}
		return err, err
	}
	w.recordMoveLocked(back)
	end, _ = w.endTurnLocked(ctx, 0)
	return end, nil
}

// sendQueued queues a small frame, and writes the queue if no other goroutine does.
func (w *writer) sendQueued(ctx context.Context, h header, body []byte, now bool) (end, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.writing && w.full(len(body)) && w.broken == nil {
		if err := w.waitLocked(ctx); err != nil {
			return nil, err
		}
	}
	if w.broken != nil {
		return nil, w.broken
	}
	if w.ring.on {
		var head [HeaderBytes]byte
		h.put(head[:])
		done, err := w.putLocked(head[:], body)
		if err != nil {
			return err, err
		}
		if done {
			return w.published(ctx, now), nil
		}
	}
	full := w.full(len(body))
	w.enqueue(h, body)
	if w.writing {
		w.batched = true
		return nil, nil
	}
	if !now && !full {
		return nil, nil
	}
	w.writing = true
	own := len(*w.queue) // this sender has the turn, so the queue only grows behind its frame
	if w.batched && now {
		// Other goroutines probably send at this moment too: let them queue their frames first.
		w.mu.Unlock()
		runtime.Gosched()
		w.mu.Lock()
		w.batched = w.queued > 1
	}
	return w.endTurnLocked(ctx, own)
}

// endTurnLocked writes the queue and ends the caller's turn, or leaves both to a goroutine when ctx ends. The caller's
// frame ends at byte own of the queue, or is not in it if own is 0. end is the error that breaks the connection. err is
// the same error if the caller's frame was not sent.
func (w *writer) endTurnLocked(ctx context.Context, own int) (end, err error) {
	for {
		left, sent, err := w.flushLocked(ctx, own)
		if left {
			return nil, nil
		}
		if err != nil {
			w.done()
			if sent {
				return err, nil
			}
			return err, err
		}
		own = 0 // it was sent
		if err = w.ringLocked(); err != nil || w.queued == 0 {
			w.done()
			return err, nil
		}
	}
}

// leaveTurnLocked ends the turn of a message that was not sent. A goroutine wakes the peer for the frames that others
// have put into the ring, and writes the frames that they have queued. Their senders do not wait.
func (w *writer) leaveTurnLocked() {
	wake := w.ring.out != nil && w.ring.out.MustWake() // also if the stream has just left the ring
	if w.queued == 0 && !wake {
		w.done()
		return
	}
	go func() {
		var end error
		if wake {
			end = w.sink.bell()
		}
		w.mu.Lock()
		if end != nil {
			w.broken = end
			w.done()
		} else {
			end, _ = w.endTurnLocked(context.Background(), 0)
		}
		w.mu.Unlock()
		if end != nil {
			w.failed(end)
		}
	}()
}

// waitLocked waits until the turn may be free, or ctx ends. It releases mu while it waits.
func (w *writer) waitLocked(ctx context.Context) error {
	if ctx.Done() == nil {
		w.free.Wait()
		return nil
	}
	if ctx.Err() != nil {
		return notSent(ctx)
	}
	stop := context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.free.Broadcast()
	})
	defer stop()
	w.free.Wait()
	return nil
}

func notSent(ctx context.Context) error { return fmt.Errorf("%w: %w", ErrNotSent, ended.Cause(ctx)) }

func (w *writer) full(body int) bool {
	return w.queue != nil && len(*w.queue)+HeaderBytes+body > queueBytes
}

func (w *writer) enqueue(h header, body []byte) {
	if w.queue == nil {
		w.queue = queues.Get().(*[]byte)
	}
	var head [HeaderBytes]byte
	h.put(head[:])
	*w.queue = append(append(*w.queue, head[:]...), body...)
	w.queued++
}

// flush writes the queue. end is as in send; err is also the error of a connection that was already broken.
func (w *writer) flush() (end, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		return nil, w.broken
	}
	if w.writing {
		return nil, nil // the current writer also writes the queue
	}
	if w.queued == 0 {
		err := w.published(context.Background(), true)
		return err, err
	}
	w.writing = true
	end, _ = w.endTurnLocked(context.Background(), 0)
	return end, end
}

// flushLocked writes the queue until it stays empty. The caller has set writing; mu is released during writes. An error
// breaks the connection; sent then reports whether the first own bytes of the queue were sent, or own is 0. If ctx ends
// before that, the queue and the turn are left to a goroutine.
func (w *writer) flushLocked(ctx context.Context, own int) (left, sent bool, err error) {
	for w.queued > 0 {
		q := w.queue
		w.queue, w.queued = nil, 0
		done, err := w.putLocked(*q, nil) // if the stream has moved back to the ring meanwhile
		back := false
		if err == nil && !done {
			if back, err = w.returnsLocked(); back {
				*q = append(*q, ringHeader[:]...)
			}
		}
		n := 0
		if err == nil && !done {
			w.mu.Unlock()
			n, err = w.sink.write(ctx, *q, nil, nil)
			if left = errors.Is(err, errInterrupted); left {
				go w.finishAbandonedWrite(w.sink.rest(), back)
			}
			w.mu.Lock()
		}
		*q = (*q)[:0]
		queues.Put(q)
		switch {
		case left:
			return true, false, nil
		case err != nil:
			w.broken = err
			return false, n >= own, err
		}
		w.recordMoveLocked(back)
		own = 0
	}
	return false, true, nil
}

// finishAbandonedWrite runs with the turn of a sender that has returned. It writes the rest of that sender's message, then the
// queue. back reports that the stream continues in the ring behind the message.
func (w *writer) finishAbandonedWrite(rest []byte, back bool) {
	_, end := w.sink.write(context.Background(), rest, nil, nil)
	w.mu.Lock()
	if end != nil {
		w.broken = end
		w.done()
	} else {
		w.recordMoveLocked(back)
		end, _ = w.endTurnLocked(context.Background(), 0)
	}
	w.mu.Unlock()
	if end != nil {
		w.failed(end)
	}
}

// done ends a turn. The caller holds mu.
func (w *writer) done() {
	w.writing = false
	if w.broken != nil && w.queue != nil {
		w.queue, w.queued = nil, 0
	}
	w.free.Broadcast()
}

// sendParts writes a message that is not queued: files frames for the descriptors beyond the capacity of one frame,
// then the frame. The caller has set writing and does not hold mu. The end of ctx interrupts it until descriptors were
// sent in a separate frame, because the caller owns the others only until it returns. With back, the stream continues
// in the ring behind a small message. started and whole report whether any of the message, or all of it, was sent.
func (w *writer) sendParts(ctx context.Context, kind Kind, id uint64, body, tail []byte, fds []int, back bool) (started, whole bool, err error) {
	for len(fds) > MaxFilesPerFrame {
		var head [HeaderBytes]byte
		header{kind: KindFiles, files: MaxFilesPerFrame, id: id}.put(head[:])
		n, err := w.sink.write(ctx, head[:], nil, fds[:MaxFilesPerFrame]) // so few bytes are sent whole or not at all
		started = started || n > 0
		if err != nil {
			return started, false, err
		}
		fds = fds[MaxFilesPerFrame:]
		ctx = context.Background()
	}
	p := queues.Get().(*[]byte)
	defer queues.Put(p)
	var head [HeaderBytes]byte
	header{length: uint32(len(body) + len(tail)), kind: kind, files: uint16(len(fds)), id: id}.put(head[:])
	out := append((*p)[:0], head[:]...)
	switch {
	case len(body) <= copyBytes:
		out = append(out, body...)
	case len(tail) == 0:
		tail = body
	default:
		tail = slices.Concat(body, tail)
	}
	size := len(out) + len(tail)
	if back {
		out = append(out, ringHeader[:]...)
	}
	*p = out[:0]
	n, err := w.sink.write(ctx, out, tail, fds)
	if n > 0 && errors.Is(err, errInterrupted) {
		go w.finishAbandonedWrite(w.sink.rest(), back)
	}
	return started || n > 0, n >= size, err
}

// errRefused marks a write that the kernel refused before it accepted any byte, for a temporary reason.
var errRefused = errors.New("the system refused the message")

// errInterrupted marks a write whose context ended while the socket was full. The sink's rest holds the unsent bytes.
var errInterrupted = errors.New("interrupted")

// close wakes the waiting senders. Writes in progress end with the socket.
func (w *writer) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken == nil {
		w.broken = net.ErrClosed
	}
	w.ring = ringWriter{}
	w.free.Broadcast()
}

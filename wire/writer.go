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
)

// copyBytes is the largest body that is copied behind its header, into the queue; a larger one is gathered from where
// it is. queueBytes is how much may wait in the queue before Send waits too.
const (
	copyBytes  = 8 << 10
	queueBytes = 32 << 10
)

var queues = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// writer sends frames. Whoever finds nobody writing writes; the frames of others queue meanwhile and go out together in
// the writer's next system call, without their senders waiting. So one busy connection costs few system calls, an idle
// one holds no buffer, and no goroutine exists only to write.
type writer struct {
	mu      sync.Mutex
	free    sync.Cond // writing has become false
	writing bool      // one goroutine uses sink
	sink    sink
	queue   *[]byte // whole frames; nil where none wait
	queued  int     // how many
	batched bool    // the last sends found frames of others queued
	broken  error   // the peer cannot find the next frame any more
	ring    ringWriter

	failed func(error) // is told of a write that failed when nobody waited for it
}

// send sends one message. If now is false, it may stay in the queue until the next send or flush. A message without
// descriptors that fits goes through the queue; others, and the last ones of a connection, wait for their turn and are
// with the kernel when send returns. fatal tells that the connection is of no use any more. When ctx ends while the
// socket is full, the message is either not sent, which is [ErrNotSent], or left to a goroutine.
func (w *writer) send(ctx context.Context, kind Kind, id uint64, body, tail []byte, files []*os.File, now bool) (fatal bool, err error) {
	last := kind == KindGoodbye || kind == KindError && id == 0 // the connection is closed when it has been written
	if len(files) == 0 && len(tail) == 0 && len(body) <= copyBytes && !last {
		return w.sendQueued(ctx, header{length: uint32(len(body)), kind: kind, id: id}, body, now)
	}
	fds, err := fileDescriptors(files)
	if err != nil {
		return false, err
	}
	defer runtime.KeepAlive(files)

	w.mu.Lock()
	defer w.mu.Unlock()
	for w.writing && w.broken == nil {
		if err := w.waitLocked(ctx); err != nil {
			return false, err
		}
	}
	if w.broken != nil {
		return false, w.broken
	}
	w.writing = true
	if left, err := w.flushLocked(ctx); left {
		return false, notSent(ctx)
	} else if err != nil {
		w.done()
		return true, err
	}
	back, err := false, w.leaveRingLocked()
	if err == nil && len(tail) == 0 && len(body) <= copyBytes && !last {
		back, err = w.returnsLocked()
	}
	if err != nil {
		w.done()
		return true, err
	}
	w.mu.Unlock()
	started, err := w.sendParts(ctx, kind, id, body, tail, fds, back)
	w.mu.Lock()
	switch {
	case errors.Is(err, errInterrupted) && started: // sendParts has left the rest to a goroutine
		return false, nil
	case errors.Is(err, errInterrupted):
		w.leaveTurnLocked()
		return false, notSent(ctx)
	case err != nil && !started && errors.Is(err, errRefused):
		w.leaveTurnLocked()
		return false, err
	case err != nil:
		w.broken = err
		w.done()
		return true, err
	}
	w.wentBackLocked(back)
	return w.endTurnLocked(ctx)
}

// sendQueued puts a small frame into the queue, and writes the queue if nobody else does.
func (w *writer) sendQueued(ctx context.Context, h header, body []byte, now bool) (fatal bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.writing && w.full(len(body)) && w.broken == nil {
		if err := w.waitLocked(ctx); err != nil {
			return false, err
		}
	}
	if w.broken != nil {
		return false, w.broken
	}
	if w.ring.on {
		var head [HeaderBytes]byte
		h.put(head[:])
		done, err := w.putLocked(head[:], body)
		if err != nil {
			return true, err
		}
		if done {
			return w.published(ctx, now)
		}
	}
	full := w.full(len(body))
	w.enqueue(h, body)
	if w.writing {
		w.batched = true
		return false, nil
	}
	if !now && !full {
		return false, nil
	}
	w.writing = true
	if w.batched && now {
		// Others are likely to send at this moment too: let those that can run put their frames into the queue first.
		w.mu.Unlock()
		runtime.Gosched()
		w.mu.Lock()
		w.batched = w.queued > 1
	}
	return w.endTurnLocked(ctx)
}

// endTurnLocked writes the queue and ends the turn of the caller, or leaves both to a goroutine when ctx ends.
func (w *writer) endTurnLocked(ctx context.Context) (fatal bool, err error) {
	for {
		left, err := w.flushLocked(ctx)
		if left {
			return false, nil
		}
		if err == nil {
			err = w.ringLocked()
		}
		if err != nil || w.queued == 0 {
			w.done()
			return err != nil, err
		}
	}
}

// leaveTurnLocked ends the turn of a message that was not sent. What others have queued meanwhile, and do not wait for,
// is written by a goroutine.
func (w *writer) leaveTurnLocked() {
	if w.queued == 0 {
		w.done()
		return
	}
	go func() {
		w.mu.Lock()
		_, err := w.endTurnLocked(context.Background())
		w.mu.Unlock()
		if err != nil {
			w.failed(err)
		}
	}()
}

// waitLocked waits until the turn may be free, or ctx ends. mu is released meanwhile.
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

func notSent(ctx context.Context) error { return fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx)) }

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

// flush writes what waits in the queue.
func (w *writer) flush() (fatal bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		return false, w.broken
	}
	if w.writing {
		return false, nil // who writes takes the queue along
	}
	if w.queued == 0 {
		return w.published(context.Background(), true)
	}
	w.writing = true
	return w.endTurnLocked(context.Background())
}

// flushLocked writes the queue until it stays empty. The caller has set writing; mu is released while it writes. An
// error is fatal. When ctx ends before that, the queue and the turn are left to a goroutine.
func (w *writer) flushLocked(ctx context.Context) (left bool, err error) {
	for w.queued > 0 {
		q := w.queue
		w.queue, w.queued = nil, 0
		done, err := w.putLocked(*q, nil) // if the stream has gone back to the ring meanwhile
		back := false
		if err == nil && !done {
			if back, err = w.returnsLocked(); back {
				*q = append(*q, ringHeader[:]...)
			}
		}
		if err == nil && !done {
			w.mu.Unlock()
			_, err = w.sink.write(ctx, *q, nil, nil)
			if left = errors.Is(err, errInterrupted); left {
				go w.carryOn(w.sink.rest(), back)
			}
			w.mu.Lock()
		}
		*q = (*q)[:0]
		queues.Put(q)
		switch {
		case left:
			return true, nil
		case err != nil:
			w.broken = err
			return false, err
		}
		w.wentBackLocked(back)
	}
	return false, nil
}

// carryOn has the turn of a sender that has left. It writes what is left of that one's message, then the queue. back
// tells that the stream goes on in the ring behind that message.
func (w *writer) carryOn(rest []byte, back bool) {
	_, err := w.sink.write(context.Background(), rest, nil, nil)
	w.mu.Lock()
	if err != nil {
		w.broken = err
		w.done()
	} else {
		w.wentBackLocked(back)
		_, err = w.endTurnLocked(context.Background())
	}
	w.mu.Unlock()
	if err != nil {
		w.failed(err)
	}
}

// done ends a turn. mu is held.
func (w *writer) done() {
	w.writing = false
	if w.broken != nil && w.queue != nil {
		w.queue, w.queued = nil, 0
	}
	w.free.Broadcast()
}

// sendParts writes a message that does not go through the queue: files frames for the descriptors that one frame cannot
// carry, then the frame. The caller has set writing and does not hold mu. The end of ctx interrupts it until
// descriptors are on their way in a frame of their own: the others are the caller's only until it returns. back has the
// stream go on in the ring behind a small message.
func (w *writer) sendParts(ctx context.Context, kind Kind, id uint64, body, tail []byte, fds []int, back bool) (started bool, err error) {
	for len(fds) > MaxFilesPerFrame {
		var head [HeaderBytes]byte
		header{kind: KindFiles, files: MaxFilesPerFrame, id: id}.put(head[:])
		part, err := w.sink.write(ctx, head[:], nil, fds[:MaxFilesPerFrame]) // all of so few bytes, or none
		started = started || part
		if err != nil {
			return started, err
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
	if back {
		out = append(out, ringHeader[:]...)
	}
	*p = out[:0]
	part, err := w.sink.write(ctx, out, tail, fds)
	if part && errors.Is(err, errInterrupted) {
		go w.carryOn(w.sink.rest(), back)
	}
	return started || part, err
}

// errRefused marks a write that the kernel refused before it took anything, for a reason that passes.
var errRefused = errors.New("the system refused the message")

// errInterrupted marks a write whose context ended while the socket was full. What was not written is in the sink's
// rest.
var errInterrupted = errors.New("interrupted")

// close wakes the senders that wait. Writes in progress end with the socket.
func (w *writer) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken == nil {
		w.broken = net.ErrClosed
	}
	w.ring = ringWriter{}
	w.free.Broadcast()
}

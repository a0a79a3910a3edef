package wire

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/wire/internal/ring"
)

// ringWriter is the ring part of a writer. It is guarded by the writer's lock and never waits. A frame that does not
// fit goes over the socket, where waiting is limited, and so do all later frames until the peer has read enough of the
// ring.
type ringWriter struct {
	out *ring.Producer // nil without a ring
	on  bool           // the stream is in the ring
}

// ringHeader is the frame that moves the stream between ring and socket.
var ringHeader = func() (b [HeaderBytes]byte) {
	header{kind: KindRing}.put(b[:])
	return b
}()

// bellHeader wakes the peer.
var bellHeader = func() (b [HeaderBytes]byte) {
	header{kind: KindBell}.put(b[:])
	return b
}()

// noWait is an ended context, for sends that must not wait.
var noWait = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// sendRing offers memory to the peer. It borrows the file and does not wait.
func (w *writer) sendRing(file *os.File) error {
	_, err := w.send(noWait, KindRing, 0, nil, nil, []*os.File{file}, true)
	return err
}

// useRing lets small frames use the ring after the next frame on the socket, which announces it.
func (w *writer) useRing(out *ring.Producer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken == nil {
		w.ring.out = out
	}
}

// putLocked puts a small frame, or the whole queue, into the ring if the stream is there. If it does not fit, the
// stream leaves the ring.
func (w *writer) putLocked(head, body []byte) (done bool, err error) {
	if !w.ring.on {
		return false, nil
	}
	done, err = w.ring.out.Put(head, body, HeaderBytes) // reserves room for the frame that announces leaving the ring
	switch {
	case err != nil:
		return false, w.corruptLocked(err)
	case !done:
		return false, w.leaveRingLocked()
	}
	return true, nil
}

// leaveRingLocked moves the stream to the socket.
func (w *writer) leaveRingLocked() error {
	if !w.ring.on {
		return nil
	}
	w.ring.on = false
	if done, err := w.ring.out.Put(ringHeader[:], nil, 0); err != nil || !done {
		return w.corruptLocked(errors.Join(ring.ErrCorrupt, err))
	}
	return nil
}

// returnsLocked reports whether the stream should return to the ring after the next message: only once the peer has
// read half of the ring.
func (w *writer) returnsLocked() (bool, error) {
	if w.ring.out == nil || w.ring.on {
		return false, nil
	}
	free, err := w.ring.out.Free()
	if err != nil {
		return false, w.corruptLocked(err)
	}
	return free >= w.ring.out.Size()/2, nil
}

// recordMoveLocked records, if back is true, that the message just sent moved the stream to the ring. The connection and
// the ring may have been closed meanwhile.
func (w *writer) recordMoveLocked(back bool) {
	if back && w.ring.out != nil {
		w.ring.on = true
	}
}

func (w *writer) corruptLocked(err error) error {
	w.broken = fmt.Errorf("%w: %w", ErrProtocol, err)
	return w.broken
}

// ringLocked wakes a sleeping peer for what was put into the ring. The caller holds the turn; mu is released meanwhile.
func (w *writer) ringLocked() error {
	for w.ring.on && w.ring.out.MustWake() {
		w.mu.Unlock()
		err := w.sink.bell()
		w.mu.Lock()
		if err != nil {
			w.broken = err
			return err
		}
	}
	return nil
}

// published completes a frame that was put into the ring, which the peer may have read already. The holder of the turn
// rings for it at the end of its turn. An error breaks the connection.
func (w *writer) published(ctx context.Context, now bool) error {
	if !now || w.writing || !w.ring.on || !w.ring.out.MustWake() {
		return nil
	}
	w.writing = true
	w.mu.Unlock()
	err := w.sink.bell()
	w.mu.Lock()
	if err != nil {
		w.broken = err
		w.done()
		return err
	}
	end, _ := w.endTurnLocked(ctx, 0)
	return end
}

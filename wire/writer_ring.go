package wire

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/wire/internal/ring"
)

// ringWriter is what a writer has of a ring. All of it is used with the writer's lock, and never waits: what finds no
// room goes over the socket, where waiting has its limits, and everything behind it as well until the peer has read
// enough of the ring.
type ringWriter struct {
	out *ring.Producer // nil where there is none
	on  bool           // the stream is in the ring
}

// ringHeader is the frame that says that the stream goes on in the other place.
var ringHeader = func() (b [HeaderBytes]byte) {
	header{kind: KindRing}.put(b[:])
	return b
}()

// bellHeader wakes the peer.
var bellHeader = func() (b [HeaderBytes]byte) {
	header{kind: KindBell}.put(b[:])
	return b
}()

// noWait is a context that has ended, for what must not wait.
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

// useRing lets small frames go by the ring from the next one that is sent over the socket on, which says so.
func (w *writer) useRing(out *ring.Producer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken == nil {
		w.ring.out = out
	}
}

// putLocked puts a small frame, or the whole queue, into the ring, if the stream is there. Where there is no room the
// stream leaves the ring.
func (w *writer) putLocked(head, body []byte) (done bool, err error) {
	if !w.ring.on {
		return false, nil
	}
	done, err = w.ring.out.Put(head, body, HeaderBytes) // room is kept for the word that the stream leaves
	switch {
	case err != nil:
		return false, w.corruptLocked(err)
	case !done:
		return false, w.leaveRingLocked()
	}
	return true, nil
}

// leaveRingLocked sends the stream on over the socket.
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

// returnsLocked reports whether the stream should go on in the ring behind what is sent next: not until the peer has
// read half of it.
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

// wentBackLocked notes, where back is true, that what was just sent said that the stream goes on in the ring. The
// connection may have been closed while it was sent, and the ring with it.
func (w *writer) wentBackLocked(back bool) {
	if back && w.ring.out != nil {
		w.ring.on = true
	}
}

func (w *writer) corruptLocked(err error) error {
	w.broken = fmt.Errorf("%w: %w", ErrProtocol, err)
	return w.broken
}

// ringLocked wakes the peer for what was put into the ring, where it sleeps. The caller has the turn; mu is released
// while it does so.
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

// published ends the sending of a frame that was put into the ring. Whoever has the turn rings for it at its end.
func (w *writer) published(ctx context.Context, now bool) (fatal bool, err error) {
	if !now || w.writing || !w.ring.on || !w.ring.out.MustWake() {
		return false, nil
	}
	w.writing = true
	w.mu.Unlock()
	err = w.sink.bell()
	w.mu.Lock()
	if err != nil {
		w.broken = err
		w.done()
		return true, err
	}
	return w.endTurnLocked(ctx)
}

package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sink writes the socket. The fields below ready are arguments and results of one write; they are in the struct to
// avoid allocations, as in source.
type sink struct {
	conn    *net.UnixConn
	raw     syscall.RawConn
	timeout time.Duration
	ready   func(fd uintptr) bool
	ring    func(fd uintptr)
	call    func(fd int, out, tail, control []byte) (int, error) // the system call; tests replace it

	out     []byte
	tail    []byte // follows out
	control []byte
	sent    int  // number of bytes sent
	bounded bool // the socket was full, and a deadline is set
	err     error
	bellErr error

	ctx         context.Context
	interrupted atomic.Bool // ctx ended while the socket was full
	unbind      func()      // ends the registration with ctx; nil if there is none
}

func (w *sink) init(conn *net.UnixConn, raw syscall.RawConn, timeout time.Duration) {
	w.conn, w.raw, w.timeout = conn, raw, timeout
	w.ready, w.ring, w.call = w.writeReady, w.ringNow, sendmsg
}

// write sends out and tail with the descriptors on the first byte. It returns the number of bytes sent, also with an
// error. If ctx ends while the socket is full, it returns errInterrupted; the caller then takes the rest while out and
// tail are unchanged.
func (w *sink) write(ctx context.Context, out, tail []byte, fds []int) (sent int, err error) {
	w.out, w.tail, w.control, w.sent, w.bounded, w.err = out, tail, nil, 0, false, nil
	w.ctx = ctx
	if len(fds) > 0 {
		w.control = unix.UnixRights(fds...)
	}
	if err = w.raw.Write(w.ready); err == nil {
		err = w.err
	}
	w.ctx, w.control = nil, nil
	if w.bounded {
		if w.unbind != nil {
			w.unbind()
			w.unbind = nil
		}
		_ = w.conn.SetWriteDeadline(time.Time{}) // on a closed connection the next write fails
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded):
		case w.interrupted.Load():
			return w.sent, errInterrupted // rest needs out and tail
		default:
			err = ErrTimeout
		}
	}
	w.out, w.tail = nil, nil
	return w.sent, err
}

// rest returns, once, a copy of the unsent part of an interrupted write.
func (w *sink) rest() []byte {
	rest := slices.Concat(w.out, w.tail)
	w.out, w.tail = nil, nil
	return rest
}

// writeReady writes as much as the socket accepts. It reports whether everything was written, or the write failed.
func (w *sink) writeReady(fd uintptr) bool {
	for {
		n, err := w.call(int(fd), w.out, w.tail, w.control)
		switch err {
		case nil:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			w.bound()
			return false
		default:
			w.err = sendError(err, len(w.control) > 0)
			return true
		}
		w.sent, w.control = w.sent+n, nil
		k := min(n, len(w.out))
		w.out, w.tail = w.out[k:], w.tail[n-k:]
		if len(w.out)+len(w.tail) == 0 {
			return true
		}
	}
}

// sendmsg makes one system call, which does not wait.
func sendmsg(fd int, out, tail, control []byte) (int, error) {
	const flags = unix.MSG_NOSIGNAL | unix.MSG_DONTWAIT
	switch {
	case len(tail) == 0 && control == nil:
		return send(fd, out, flags)
	case len(tail) == 0:
		return unix.SendmsgN(fd, out, control, nil, flags)
	case len(out) == 0:
		return unix.SendmsgN(fd, tail, control, nil, flags)
	}
	return unix.SendmsgBuffers(fd, [][]byte{out, tail}, control, nil, flags)
}

// bell wakes the peer without waiting. If the socket is full, the peer has something to read and is awake. The caller
// holds the turn to write.
func (w *sink) bell() error {
	if err := w.raw.Control(w.ring); err != nil {
		return err
	}
	return w.bellErr
}

// ringNow sends the bell.
func (w *sink) ringNow(fd uintptr) {
	for {
		switch _, err := w.call(int(fd), bellHeader[:], nil, nil); err {
		case nil, unix.EAGAIN:
			w.bellErr = nil
			return
		case unix.EINTR:
		default:
			w.bellErr = os.NewSyscallError("send", err)
			return
		}
	}
}

// sendError explains a refused message. Sent descriptors that the peer has not received count against the sender's
// limit of open files. Too many of them, or a lack of memory, does not end the connection.
func sendError(err error, files bool) error {
	e := os.NewSyscallError("sendmsg", err)
	switch {
	case err == unix.ETOOMANYREFS:
		return fmt.Errorf("%w: more descriptors are on their way than this user may have open: %w", errRefused, e)
	case err == unix.ENOBUFS, err == unix.ENOMEM, files && err == unix.EBADF:
		return fmt.Errorf("%w: %w", errRefused, e)
	}
	return e
}

// bound sets the deadline of a write, and registers with its context, the first time that the write must wait. A write
// that completes at once costs neither.
func (w *sink) bound() {
	if w.bounded {
		return
	}
	w.bounded = true
	w.interrupted.Store(false)
	if w.timeout > 0 {
		_ = w.conn.SetWriteDeadline(time.Now().Add(w.timeout)) // best effort, as above
	}
	if w.ctx.Done() == nil {
		return
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(w.ctx, func() {
		defer close(fired)
		w.interrupted.Store(true)
		_ = w.conn.SetWriteDeadline(time.Unix(1, 0)) // a time in the past
	})
	w.unbind = func() {
		if !stop() {
			<-fired
		}
	}
}

// fileDescriptors returns the descriptors of files. It does not use f.Fd, which would make the file blocking, also for
// the peer.
func fileDescriptors(files []*os.File) ([]int, error) {
	if len(files) == 0 {
		return nil, nil
	}
	fds := make([]int, len(files))
	for i, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			return nil, fmt.Errorf("descriptor %d: %w", i, err)
		}
		if raw.Control(func(fd uintptr) { fds[i] = int(fd) }) != nil {
			return nil, fmt.Errorf("descriptor %d, %s: %w", i, f.Name(), os.ErrClosed)
		}
	}
	return fds, nil
}

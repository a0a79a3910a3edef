package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var errClosed error = net.ErrClosed

// controlBytes is room for the descriptors of one message: the kernel sends no more than MaxFilesPerFrame at a time, and
// asks for nothing else in the control data of a socket without further options.
var controlBytes = unix.CmsgSpace(MaxFilesPerFrame * 4)

// buffer is what reading needs, borrowed from a pool while there is something to read.
type buffer struct {
	data    [bufferBytes]byte
	control []byte
}

var buffers = sync.Pool{New: func() any { return &buffer{control: make([]byte, controlBytes)} }}

// init fills in what depends on the socket.
func (c *Conn) init() error {
	if network := c.conn.LocalAddr().Network(); network != "unix" {
		return fmt.Errorf("%s socket: %w: use a stream socket", network, os.ErrInvalid)
	}
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return err
	}
	if c.peer, err = peerCredentials(raw); err != nil {
		return err
	}
	c.reader.limits = &c.limits
	c.reader.src.init(raw)
	c.writer.init(c.conn, raw, c.limits.WriteTimeout)
	return nil
}

func peerCredentials(raw syscall.RawConn) (Credentials, error) {
	var cred *unix.Ucred
	var err error
	if cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); cerr != nil {
		return Credentials{}, cerr
	}
	if err != nil {
		return Credentials{}, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	return Credentials{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid}, nil
}

// source reads the socket. Its fields below raw are the arguments and results of one read, in the struct so that the
// function handed to raw.Read is made once and nothing is allocated.
type source struct {
	raw   syscall.RawConn
	ready func(fd uintptr) bool

	buf   *buffer // nil while nothing is to be read
	dst   []byte
	n     int
	ctl   int
	flags int
	err   error
}

func (s *source) init(raw syscall.RawConn) {
	s.raw = raw
	s.ready = s.readReady
}

// read waits until there are bytes and returns how many went to dst, or to buf.data if dst is nil, and the descriptors,
// owned, that came with them. The end of the stream is io.EOF. Descriptors are returned also with an error.
func (s *source) read(dst []byte) (n int, fds []int, err error) {
	s.dst = dst
	err = s.raw.Read(s.ready)
	s.dst = nil
	if err != nil {
		s.releaseIfIdle(dst)
		return 0, nil, err
	}
	if s.err != nil {
		s.releaseIfIdle(dst)
		return 0, nil, os.NewSyscallError("recvmsg", s.err)
	}
	if s.ctl > 0 || s.flags&unix.MSG_CTRUNC != 0 {
		fds, err = s.descriptors()
	}
	if s.n == 0 && err == nil {
		s.releaseIfIdle(dst)
		err = io.EOF
	}
	return s.n, fds, err
}

// readReady reads once. It is called when the socket may be readable and answers whether it was.
func (s *source) readReady(fd uintptr) bool {
	dst := s.dst
	if dst == nil {
		if s.buf == nil {
			s.buf = buffers.Get().(*buffer)
		}
		dst = s.buf.data[:]
	}
	for {
		s.n, s.ctl, s.flags, _, s.err = unix.Recvmsg(int(fd), dst, s.buf.control, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		switch s.err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			s.releaseIfIdle(s.dst)
			return false
		}
		return true
	}
}

// releaseIfIdle gives the buffer back if nothing is in it.
func (s *source) releaseIfIdle(dst []byte) {
	if dst == nil {
		s.release()
	}
}

func (s *source) release() {
	if s.buf != nil {
		buffers.Put(s.buf)
		s.buf = nil
	}
}

// descriptors takes the descriptors out of the control data of the last read. On an error none is left open.
func (s *source) descriptors() ([]int, error) {
	var fds []int
	rest := s.buf.control[:s.ctl]
	var err error
	for len(rest) > 0 && err == nil {
		var h unix.Cmsghdr
		var data []byte
		h, data, rest, err = unix.ParseOneSocketControlMessage(rest)
		if err == nil && (h.Level != unix.SOL_SOCKET || h.Type != unix.SCM_RIGHTS) {
			err = fmt.Errorf("control data of type %d", h.Type)
		}
		if err == nil {
			fds = appendDescriptors(fds, data)
		}
	}
	if err != nil {
		closeDescriptors(fds)
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if s.flags&unix.MSG_CTRUNC != 0 {
		closeDescriptors(fds)
		return nil, explainTruncation(len(fds))
	}
	return fds, nil
}

func appendDescriptors(fds []int, data []byte) []int {
	if fds == nil {
		fds = make([]int, 0, len(data)/4)
	}
	for ; len(data) >= 4; data = data[4:] {
		fds = append(fds, int(int32(binary.NativeEndian.Uint32(data))))
	}
	return fds
}

// explainTruncation finds out why the kernel dropped descriptors, since the flag says only that it did: there is room for
// all that one message can carry, so mostly this process has no free descriptor.
func explainTruncation(got int) error {
	fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return fmt.Errorf("%w: descriptors were lost after %d of them: %w", ErrProtocol, got, err)
	}
	return fmt.Errorf("%w: descriptors were lost after %d of them", ErrProtocol, got)
}

func closeDescriptors(fds []int) error {
	var errs []error
	for _, fd := range fds {
		if fd >= 0 {
			errs = append(errs, os.NewSyscallError("close", unix.Close(fd)))
		}
	}
	return errors.Join(errs...)
}

// copyBytes is the largest body that is copied behind its header, so that one buffer goes to the kernel; larger ones are
// gathered from where they are.
const copyBytes = 32 << 10

var frames = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// writer sends frames, one at a time.
type writer struct {
	conn    *net.UnixConn
	raw     syscall.RawConn
	timeout time.Duration
	ready   func(fd uintptr) bool

	mu sync.Mutex
	// The rest are the arguments and results of one write.
	out     []byte
	tail    []byte // what follows out
	control []byte
	started bool // some byte of this message was sent
	bounded bool // the socket was full, and a deadline is set
	err     error
}

func (w *writer) init(conn *net.UnixConn, raw syscall.RawConn, timeout time.Duration) {
	w.conn, w.raw, w.timeout = conn, raw, timeout
	w.ready = w.writeReady
}

// send sends a message. fatal tells that the peer cannot find the next frame.
func (w *writer) send(kind Kind, id uint64, body []byte, files []*os.File) (fatal bool, err error) {
	var fds []int
	if len(files) > 0 {
		if fds, err = fileDescriptors(files); err != nil {
			return false, err
		}
		defer runtime.KeepAlive(files)
	}
	last := len(fds) - max(0, len(fds)-1)/MaxFilesPerFrame*MaxFilesPerFrame
	ahead, fds := fds[:len(fds)-last], fds[len(fds)-last:]

	p := frames.Get().(*[]byte)
	defer frames.Put(p)
	var head [HeaderBytes]byte
	header{length: uint32(len(body)), kind: kind, files: uint16(len(fds)), id: id}.put(head[:])
	out, tail := append((*p)[:0], head[:]...), body
	if len(body) <= copyBytes {
		out, tail = append(out, body...), nil
	}
	*p = out

	w.mu.Lock()
	defer w.mu.Unlock()
	w.started = false
	if err := w.sendAhead(id, ahead); err != nil {
		return w.started || isTimeout(err), err
	}
	err = w.write(out, tail, fds)
	return w.started || isTimeout(err), err
}

// sendAhead sends files frames with all of fds, a multiple of what one frame can carry.
func (w *writer) sendAhead(id uint64, fds []int) error {
	for ; len(fds) > 0; fds = fds[MaxFilesPerFrame:] {
		var head [HeaderBytes]byte
		header{kind: KindFiles, files: MaxFilesPerFrame, id: id}.put(head[:])
		if err := w.write(head[:], nil, fds[:MaxFilesPerFrame]); err != nil {
			return err
		}
	}
	return nil
}

// write sends out and tail with the descriptors on the first byte.
func (w *writer) write(out, tail []byte, fds []int) error {
	w.out, w.tail, w.control, w.bounded, w.err = out, tail, nil, false, nil
	if len(fds) > 0 {
		w.control = unix.UnixRights(fds...)
	}
	err := w.raw.Write(w.ready)
	if err == nil {
		err = w.err
	}
	if w.bounded {
		w.conn.SetWriteDeadline(time.Time{})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = ErrTimeout
		}
	}
	w.out, w.tail, w.control = nil, nil, nil
	return err
}

// writeReady writes as much as the socket takes and answers whether that was all, or failed.
func (w *writer) writeReady(fd uintptr) bool {
	for {
		n, err := w.sendmsg(int(fd))
		switch err {
		case nil:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			w.bound()
			return false
		default:
			w.err = os.NewSyscallError("sendmsg", err)
			return true
		}
		w.started, w.control = true, nil
		k := min(n, len(w.out))
		w.out, w.tail = w.out[k:], w.tail[n-k:]
		if len(w.out)+len(w.tail) == 0 {
			return true
		}
	}
}

func (w *writer) sendmsg(fd int) (int, error) {
	const flags = unix.MSG_NOSIGNAL | unix.MSG_DONTWAIT
	switch {
	case len(w.tail) == 0:
		return unix.SendmsgN(fd, w.out, w.control, nil, flags)
	case len(w.out) == 0:
		return unix.SendmsgN(fd, w.tail, w.control, nil, flags)
	}
	return unix.SendmsgBuffers(fd, [][]byte{w.out, w.tail}, w.control, nil, flags)
}

// bound sets the deadline of a write when it must wait for the first time: a socket that takes everything at once costs no
// timer.
func (w *writer) bound() {
	if !w.bounded && w.timeout > 0 {
		w.bounded = true
		w.conn.SetWriteDeadline(time.Now().Add(w.timeout))
	}
}

// fileDescriptors are the numbers behind files. Not f.Fd: that makes the file blocking, for the peer too.
func fileDescriptors(files []*os.File) ([]int, error) {
	fds := make([]int, len(files))
	for i, f := range files {
		raw, err := f.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
		}
		if err != nil {
			return nil, fmt.Errorf("descriptor %d: %w", i, err)
		}
	}
	return fds, nil
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// Pipe returns two connected ends in this process, both owned by the caller.
func Pipe(limits Limits) (a, b *Conn, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	var ends [2]*Conn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "pipe")
		defer f.Close()
		if err != nil {
			continue
		}
		var c net.Conn
		if c, err = net.FileConn(f); err == nil {
			ends[i], err = NewConn(c.(*net.UnixConn), limits)
		}
	}
	if err != nil {
		if ends[0] != nil {
			ends[0].Close()
		}
		return nil, nil, err
	}
	return ends[0], ends[1], nil
}

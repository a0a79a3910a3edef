package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/wire/internal/ring"
)

// controlBytes is the room for the descriptors of one message. The kernel passes at most MaxFilesPerFrame at a time,
// and nothing else in the control data of a socket without further options.
var controlBytes = unix.CmsgSpace(MaxFilesPerFrame * 4)

// buffer is the memory for reading, borrowed from a pool while data is available.
type buffer struct {
	data    [bufferBytes]byte
	control []byte
}

var buffers = sync.Pool{New: func() any { return &buffer{control: make([]byte, controlBytes)} }}

// source reads the socket. The fields below raw are arguments and results of one read. They are in the struct so that
// the function passed to raw.Read is created once and nothing is allocated.
type source struct {
	raw   syscall.RawConn
	ready func(fd uintptr) bool
	look  func() bool
	poll  busyPoll
	stall stall

	within bool // the read is within a frame

	ring   *ring.Consumer // also waited for; nil without a ring
	inRing bool           // the read ended because the ring has data

	buf   *buffer // nil while there is nothing to read
	fd    int
	dst   []byte
	n     int
	ctl   int
	flags int
	errno unix.Errno
	msg   message
}

func (s *source) init(conn *net.UnixConn, raw syscall.RawConn, limits *Limits) {
	s.raw = raw
	s.stall.conn, s.stall.limit = conn, limits.FrameTimeout
	s.ready = s.readReady
	s.look = s.readNow
	s.poll.limit = limits.BusyPoll
}

// read waits for data. It returns the number of bytes read into dst, or into buf.data if dst is nil, and the
// descriptors that arrived with them, owned by the caller. within reports that a frame has begun, batched that the last
// read returned several frames. The end of the stream is io.EOF. Descriptors may be returned with an error.
func (s *source) read(dst []byte, within, batched bool) (n int, fds []int, err error) {
	s.dst, s.within, s.poll.batched, s.inRing = dst, within, batched, false
	if s.ring != nil && s.poll.until(s.ring.Ready, lookAtRing) {
		s.dst = nil
		return 0, nil, nil
	}
	err = s.raw.Read(s.ready)
	s.dst = nil
	if s.ring != nil {
		s.ring.Wake()
	}
	if s.inRing {
		s.releaseIfIdle(dst)
		return 0, nil, err
	}
	if err != nil {
		s.releaseIfIdle(dst)
		return 0, nil, err
	}
	if s.errno != 0 {
		s.releaseIfIdle(dst)
		return 0, nil, os.NewSyscallError("recvmsg", s.errno)
	}
	if s.ctl > 0 || s.flags&unix.MSG_CTRUNC != 0 {
		fds, err = s.descriptors()
	}
	if s.n == 0 && (err == nil || errors.Is(err, ErrBudget)) {
		s.releaseIfIdle(dst)
		if err = io.EOF; s.stall.over.Load() {
			err = fmt.Errorf("a frame took longer than %v: %w", s.stall.limit, ErrTimeout)
		}
	}
	return s.n, fds, err
}

// readReady reads once. It is called when the socket may be readable, and reports whether it was.
func (s *source) readReady(fd uintptr) bool {
	// The ring comes first, but unread bells would fill the socket.
	awake := s.ring != nil && !s.ring.Sleep()
	if awake && s.ring.Due() < maxDue {
		s.inRing = true
		return true
	}
	if s.dst == nil && s.buf == nil {
		s.buf = buffers.Get().(*buffer)
	}
	s.fd = int(fd)
	if s.readNow() || s.ring == nil && s.poll.until(s.look, lookAtSocket) {
		return true
	}
	if awake {
		s.inRing = true
		return true
	}
	s.releaseIfIdle(s.dst)
	if s.within {
		s.stall.begin()
	}
	return false
}

// readNow reads once without waiting and reports whether there was data.
func (s *source) readNow() bool {
	dst := s.dst
	if dst == nil {
		dst = s.buf.data[:]
	}
	for {
		s.n, s.ctl, s.flags, s.errno = s.msg.receive(s.fd, dst, s.buf.control, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if s.errno != unix.EINTR {
			return s.errno != unix.EAGAIN
		}
	}
}

// releaseIfIdle returns the buffer to the pool if it is empty.
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
		_ = closeDescriptors(fds)
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if s.flags&unix.MSG_CTRUNC != 0 {
		err = explainTruncation(len(fds))
		_ = closeDescriptors(fds)
		return nil, err
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

// explainTruncation determines why the kernel dropped descriptors. The buffer holds all descriptors of a message, so
// usually the process has no free descriptor. Those that arrived must still be open.
func explainTruncation(got int) error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err == nil {
		_ = unix.Close(fd) // it was opened to test for a free descriptor
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return fmt.Errorf("%w: descriptors were lost after %d of them: %w", ErrBudget, got, err)
	}
	return fmt.Errorf("%w: descriptors were lost after %d of them", ErrProtocol, got)
}

// frameDone records that the whole frame has arrived.
func (s *source) frameDone() { s.stall.complete() }

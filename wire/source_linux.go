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

// controlBytes is room for the descriptors of one message: the kernel sends no more than MaxFilesPerFrame at a time,
// and asks for nothing else in the control data of a socket without further options.
var controlBytes = unix.CmsgSpace(MaxFilesPerFrame * 4)

// buffer is what reading needs, borrowed from a pool while there is something to read.
type buffer struct {
	data    [bufferBytes]byte
	control []byte
}

var buffers = sync.Pool{New: func() any { return &buffer{control: make([]byte, controlBytes)} }}

// source reads the socket. Its fields below raw are the arguments and results of one read, in the struct so that the
// function handed to raw.Read is made once and nothing is allocated.
type source struct {
	raw   syscall.RawConn
	ready func(fd uintptr) bool
	look  func() bool
	poll  busyPoll
	stall stall

	within bool // the read is within a frame

	ring   *ring.Consumer // what is waited for beside the socket; nil for nothing
	inRing bool           // the read has ended because the ring has something

	buf   *buffer // nil while nothing is to be read
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

// read waits until there are bytes and returns how many went to dst, or to buf.data if dst is nil, and the descriptors,
// owned, that came with them. within says that a frame has begun, batched that the last read brought several frames.
// The end of the stream is io.EOF. Descriptors are returned also with an error.
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

// readReady reads once. It is called when the socket may be readable and answers whether it was.
func (s *source) readReady(fd uintptr) bool {
	// The ring first; but bells that nobody reads would fill the socket.
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

// readNow reads once if there is anything to be read, and answers whether there was.
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

// explainTruncation finds out why the kernel dropped descriptors, since the flag says only that it did: there is room
// for all that one message can carry, so mostly this process has no free descriptor. Those that came must still be
// open.
func explainTruncation(got int) error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err == nil {
		_ = unix.Close(fd) // it was opened to see whether it can be
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return fmt.Errorf("%w: descriptors were lost after %d of them: %w", ErrBudget, got, err)
	}
	return fmt.Errorf("%w: descriptors were lost after %d of them", ErrProtocol, got)
}

// frameDone notes that all of a frame has come.
func (s *source) frameDone() { s.stall.complete() }

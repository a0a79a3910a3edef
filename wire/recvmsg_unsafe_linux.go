package wire

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// message is the argument of recvmsg, kept between calls. unix.Recvmsg allocates and decodes the sender's address on
// each call, which is most of the cost of receiving a small frame. A connected socket needs no address.
type message struct {
	hdr unix.Msghdr
	iov unix.Iovec
}

// The calls below bypass the scheduler because the socket never blocks. With a scheduler notification, each call of a
// client that makes one call after another would wake the runtime's monitor thread.

// receive calls recvmsg once. flags must make it non-blocking. It returns the number of bytes in data and control, and
// the flags of the message. data and control must not be empty.
func (m *message) receive(fd int, data, control []byte, flags int) (n, controlBytes, recvFlags int, err unix.Errno) {
	m.iov.Base = &data[0]
	m.iov.SetLen(len(data))
	m.hdr.Iov = &m.iov
	m.hdr.SetIovlen(1)
	m.hdr.Control = &control[0]
	m.hdr.SetControllen(len(control))
	m.hdr.Flags = 0
	r, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.hdr)), uintptr(flags))
	m.iov.Base, m.hdr.Control = nil, nil
	if errno != 0 {
		return 0, 0, 0, errno
	}
	return int(r), int(m.hdr.Controllen), int(m.hdr.Flags), 0
}

// send calls sendto once, which is cheaper than sendmsg for one piece without descriptors. data must not be empty.
func send(fd int, data []byte, flags int) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

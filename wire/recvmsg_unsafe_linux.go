package wire

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// message is the argument of recvmsg, kept between calls. unix.Recvmsg allocates room for the sender's address on each call,
// and again to decode it, which is most of what receiving a small frame costs here; a connected socket needs no address.
type message struct {
	hdr unix.Msghdr
	iov unix.Iovec
}

// receive calls recvmsg once. It returns how many bytes went to data and to control, and the message's flags. data and
// control must not be empty.
func (m *message) receive(fd int, data, control []byte, flags int) (n, controlBytes, recvFlags int, err unix.Errno) {
	m.iov.Base = &data[0]
	m.iov.SetLen(len(data))
	m.hdr.Iov = &m.iov
	m.hdr.SetIovlen(1)
	m.hdr.Control = &control[0]
	m.hdr.SetControllen(len(control))
	m.hdr.Flags = 0
	r, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.hdr)), uintptr(flags))
	m.iov.Base, m.hdr.Control = nil, nil
	if errno != 0 {
		return 0, 0, 0, errno
	}
	return int(r), int(m.hdr.Controllen), int(m.hdr.Flags), 0
}

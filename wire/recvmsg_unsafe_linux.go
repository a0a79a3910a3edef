package wire

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// message is the argument of recvmsg, kept between calls. unix.Recvmsg allocates room for the sender's address on each
// call, and again to decode it, which is most of what receiving a small frame costs here; a connected socket needs no
// address.
type message struct {
	hdr unix.Msghdr
	iov unix.Iovec
}

// The calls below tell the scheduler nothing, for the socket never blocks them: announced as calls that might, they
// wake the runtime's monitor thread whenever the process was idle before, that is, for each call of a client that makes
// one after the other.

// receive calls recvmsg once, with flags that keep it from blocking. It returns how many bytes went to data and to
// control, and the message's flags. data and control must not be empty.
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

// send calls sendto once, which costs less than sendmsg and does the same where there is one piece and no descriptor.
// data must not be empty.
func send(fd int, data []byte, flags int) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)), uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

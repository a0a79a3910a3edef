package wire

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

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

package wire

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/internal/userns"
)

// init initializes the parts that depend on the socket.
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
	c.reader.src.init(c.conn, raw, &c.limits)
	c.writer.sink.init(c.conn, raw, c.limits.WriteTimeout)
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
	return Credentials{PID: cred.Pid, UID: userns.User(cred.Uid), GID: userns.Group(cred.Gid)}, nil
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

// FilesOf returns Files with duplicates of the descriptors of files, which it borrows.
func FilesOf(files []*os.File) (*Files, error) {
	fds, err := fileDescriptors(files)
	if err != nil {
		return nil, err
	}
	for i, fd := range fds {
		if fds[i], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			_ = closeDescriptors(fds[:i])
			return nil, os.NewSyscallError("duplicate a descriptor", err)
		}
	}
	runtime.KeepAlive(files)
	return newFiles(fds), nil
}

// sizeOf returns the size of the file behind a descriptor, or 0 if it has none.
func sizeOf(fd int) int64 {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0
	}
	return st.Size
}

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

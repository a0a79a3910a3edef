package wire

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
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
	return Credentials{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid}, nil
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

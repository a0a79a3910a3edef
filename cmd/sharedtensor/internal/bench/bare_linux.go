package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
)

// What things cost without this module: bare Unix sockets, as Go offers them.

// bareBytes is the size of a bare message, that of a ping in a frame or larger.
const bareBytes = 64

// echo sends back what comes, until the connection ends.
func echo(c net.Conn) {
	var b [bareBytes]byte
	for {
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return
		}
		if _, err := c.Write(b[:]); err != nil {
			return
		}
	}
}

// accept answers connections on a socket of its own, one goroutine each.
func (w *worker) accept(socket string) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go echo(c)
		}
	}()
	return nil
}

// connectBare makes idle connections. Each has been answered once.
func (w *worker) connectBare(socket string, count int) error {
	for range count {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		w.conns = append(w.conns, c)
		if _, err := barePing(c); err != nil {
			return err
		}
	}
	return nil
}

// barePing sends a message and waits until it comes back.
func barePing(c net.Conn) (time.Duration, error) {
	var b [bareBytes]byte
	start := time.Now()
	if _, err := c.Write(b[:]); err != nil {
		return 0, err
	}
	_, err := io.ReadFull(c, b[:])
	return time.Since(start), err
}

// pass answers each byte on the bare socket with the descriptor of a memfd.
func (w *worker) pass(bytes int64) error {
	mem, err := w.dev.Alloc(bytes)
	if err != nil {
		return err
	}
	h, err := mem.Export()
	if err != nil {
		return err
	}
	rights := syscall.UnixRights(int(h.File.Fd()))
	go func() {
		defer h.Close()
		var b [1]byte
		for {
			if _, err := w.bare.Read(b[:]); err != nil {
				return
			}
			if _, _, err := w.bare.WriteMsgUnix(b[:], rights, nil); err != nil {
				return
			}
		}
	}()
	return nil
}

// attachBare asks for a descriptor and maps it; that counts. Then it unmaps and closes it.
func attachBare(c *net.UnixConn, bytes int) (time.Duration, error) {
	var b [1]byte
	var control [64]byte
	start := time.Now()
	if _, err := c.Write(b[:]); err != nil {
		return 0, err
	}
	_, n, _, _, err := c.ReadMsgUnix(b[:], control[:])
	if err != nil {
		return 0, err
	}
	messages, err := syscall.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return 0, fmt.Errorf("the far end passed no descriptor: %w", errors.Join(err, driver.ErrHandle))
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, fmt.Errorf("the far end passed no descriptor: %w", errors.Join(err, driver.ErrHandle))
	}
	defer func() { _ = syscall.Close(fds[0]) }()
	mapping, err := syscall.Mmap(fds[0], 0, bytes, syscall.PROT_READ, syscall.MAP_SHARED)
	took := time.Since(start)
	if err != nil {
		return 0, os.NewSyscallError("mmap", err)
	}
	return took, os.NewSyscallError("munmap", syscall.Munmap(mapping))
}

// connOf makes a connection of a socket's file, which it takes.
func connOf(f *os.File) (*net.UnixConn, error) {
	if f == nil {
		return nil, os.ErrInvalid
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("not a Unix socket"), c.Close())
	}
	return u, nil
}

// socketPair returns a connection and, as a file, the other end of it. Both are owned by the caller.
func socketPair() (_ *net.UnixConn, far *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	far = os.NewFile(uintptr(fds[1]), "bare")
	near, err := connOf(os.NewFile(uintptr(fds[0]), "bare"))
	if err != nil {
		far.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// barePinger is barePing on a connection that ends with ctx.
func barePinger(c net.Conn) func(context.Context) (time.Duration, error) {
	return func(context.Context) (time.Duration, error) { return barePing(c) }
}

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

// Floors: the same work on bare Unix sockets, without this module.

// bareBytes is the size of a bare message. A ping frame is not larger.
const bareBytes = 64

// echo returns everything it receives until the connection ends.
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

// accept accepts connections on a separate socket, with one goroutine for each.
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

// connectBare opens idle connections. Each has completed one round trip.
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

// barePing measures one round trip of a message.
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

// attachBare requests a descriptor and maps it. Only this is measured. It then unmaps and closes it.
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
		return 0, fmt.Errorf("the peer passed no descriptor: %w", errors.Join(err, driver.ErrHandle))
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, fmt.Errorf("the peer passed no descriptor: %w", errors.Join(err, driver.ErrHandle))
	}
	defer func() { _ = syscall.Close(fds[0]) }()
	mapping, err := syscall.Mmap(fds[0], 0, bytes, syscall.PROT_READ, syscall.MAP_SHARED)
	took := time.Since(start)
	if err != nil {
		return 0, os.NewSyscallError("mmap", err)
	}
	return took, os.NewSyscallError("munmap", syscall.Munmap(mapping))
}

// connOf returns a connection for a socket's file and takes ownership of the file.
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

// socketPair returns a connected pair: this side as a connection, the far side as a file. The caller owns both.
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

// barePinger returns a run of barePing on a connection that is closed when ctx ends.
func barePinger(c net.Conn) func(context.Context) (time.Duration, error) {
	return func(context.Context) (time.Duration, error) { return barePing(c) }
}

package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// startTime limits how long a new keeper may take to listen.
const startTime = 5 * time.Second

// maxSaid is the number of bytes that a keeper can write to its standard error.
const maxSaid = 64 << 10

// leftPID returns the process id of the last keeper on a socket; -1 if it is not known.
func leftPID(socket string) int {
	text, err := os.ReadFile(socket + ".lock")
	if pid, failed := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && failed == nil {
		return pid
	}
	return -1
}

// dial connects to the keeper. Without one it starts one, unless the options exclude that, and waits until that listens.
func (p *Process) dial() (*net.UnixConn, error) {
	conn, err := connect(p.opts.Socket)
	if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist) {
		return conn, err
	}
	if p.opts.ConnectOnly {
		return nil, fmt.Errorf("%w; start it with sharedtensor keep --socket %s", err, p.opts.Socket)
	}
	command := exec.Command(p.opts.Command[0], p.opts.Command[1:]...)
	command.Dir = "/"
	command.Env = append(os.Environ(), startedEnv+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// A keeper outlives the readers of this process's standard error, so it gets memory to write to.
	said, err := memoryFile("standard error of a keeper", maxSaid)
	if err != nil {
		return nil, err
	}
	defer said.Close()
	command.Stderr = said
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start a keeper: %w; install the command sharedtensor, or set Options.Command to a program that calls keeper.Serve", err)
	}
	exited := make(chan error, 1)
	go func() { exited <- command.Wait() }()
	for end := time.Now().Add(startTime); ; time.Sleep(2 * time.Millisecond) {
		conn, err := connect(p.opts.Socket)
		if err == nil {
			return conn, nil
		}
		select {
		case failed := <-exited:
			if conn, err := connect(p.opts.Socket); err == nil {
				return conn, nil
			}
			if strings.Contains(firstLine(said), status.ErrInUse.Error()) { // another owner has started one, which will listen
				exited = nil
				continue
			}
			return nil, fmt.Errorf("start a keeper: %s ended: %w%s", p.opts.Command[0], errors.Join(failed, err), firstLine(said))
		default:
		}
		if time.Now().After(end) {
			_ = command.Process.Kill() // fails if it has ended; otherwise each attempt would leave a process behind
			return nil, fmt.Errorf("the new keeper does not listen after %v: %w", startTime, err)
		}
	}
}

// firstLine returns what a keeper wrote first, for an error text.
func firstLine(f *os.File) string {
	line := make([]byte, 200)
	n, _ := f.ReadAt(line, 0) // best effort: the keeper may have written nothing
	text, _, _ := strings.Cut(string(bytes.TrimRight(line[:n], "\x00")), "\n")
	if text == "" {
		return ""
	}
	return ": " + message.CutText(text, len(line))
}

// connect connects once.
func connect(path string) (*net.UnixConn, error) {
	d := net.Dialer{Timeout: answerTime}
	c, err := d.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// checked checks that the keeper runs as the user of this process. It takes the socket.
func checked(socket *net.UnixConn) (*wire.Conn, syscall.RawConn, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	conn, err := wire.NewConn(socket, limits)
	if err != nil {
		return nil, nil, err
	}
	if peer := conn.Peer(); peer.Mapped() != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("%w: the keeper: %w", os.ErrPermission, peer.Mapped())
	} else if !peer.SameUser() {
		conn.Close()
		return nil, nil, fmt.Errorf("%w: process %d of user %d listens there", os.ErrPermission, peer.PID, peer.UID)
	}
	return conn, raw, nil
}

// hungUp reports whether the peer of a socket has closed it.
func hungUp(socket syscall.RawConn) bool {
	var events []unix.PollFd
	err := socket.Control(func(fd uintptr) {
		events = []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, _ = unix.Poll(events, 0) // an interrupted call is repeated at the next tick
	})
	return err != nil || events[0].Revents != 0
}

// readable reports whether a read from a socket does not wait.
func readable(socket syscall.RawConn) bool {
	var events []unix.PollFd
	err := socket.Control(func(fd uintptr) {
		events = []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, _ = unix.Poll(events, 0) // an interrupted call is repeated at the next tick
	})
	return err == nil && events[0].Revents&unix.POLLIN != 0
}

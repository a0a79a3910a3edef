package command

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/wire"
)

// firstEnv tells a successor the process id of the owner that stays as its parent.
const firstEnv = "SHARED_TENSOR_FIRST"

// initialPIDNamespace is what /proc/self/ns/pid of a process outside of containers links to (PROC_PID_INIT_INO).
const initialPIDNamespace = "pid:[4026531836]"

// staysFirst reports whether this process must live as long as its successors. In a container, the kernel ends all
// processes when process 1 ends, and an init such as tini ends when its child does. A service manager with NOTIFY_SOCKET
// learns the successor's id instead, and a successor has a parent that stays.
func staysFirst() bool {
	if os.Getenv(firstEnv) == strconv.Itoa(os.Getppid()) || os.Getenv("NOTIFY_SOCKET") != "" {
		return false
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	return os.Getpid() == 1 || err == nil && namespace != initialPIDNamespace
}

// first is an owner that was replaced and stays as the parent of the one that serves. It holds no models.
type first struct {
	socket  string
	log     *slog.Logger
	signals chan os.Signal
	ended   chan *os.ProcessState // of the successor that this process has started
	pid     int                   // of that successor
}

// newFirst prepares this process to be the parent of its successors. It returns nil if that is not necessary.
func newFirst(socket string, log *slog.Logger) (*first, error) {
	if !staysFirst() {
		return nil, nil
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil { // children of successors become children of this process
		return nil, os.NewSyscallError("prctl", err)
	}
	if err := os.Setenv(firstEnv, strconv.Itoa(os.Getpid())); err != nil {
		return nil, err
	}
	f := &first{socket: socket, log: log, signals: make(chan os.Signal, 8), ended: make(chan *os.ProcessState, 1)}
	return f, nil
}

// follow passes signals to the serving process, reaps orphans, and returns when the last successor has ended. The error is
// its exit status, nil for 0.
func (f *first) follow(ctx context.Context) error {
	signal.Notify(f.signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(f.signals)
	debug.FreeOSMemory()
	f.log.Info("this process stays as the parent of the new one", "pid", f.pid)
	if ctx.Err() != nil { // the signal arrived before Notify
		f.pass(syscall.SIGTERM)
	}
	var status syscall.WaitStatus
	for f.ended != nil {
		select {
		case s := <-f.signals:
			f.pass(s)
		case state := <-f.ended:
			f.ended = nil
			status, _ = state.Sys().(syscall.WaitStatus)
		}
	}
	for f.replaced(status) {
		f.log.Info("another process serves", "pid", f.pid)
		ended := make(chan syscall.WaitStatus, 1)
		go func(pid int) { ended <- reap(pid) }(f.pid)
		for waiting := true; waiting; {
			select {
			case s := <-f.signals:
				f.pass(s)
			case status = <-ended:
				waiting = false
			}
		}
	}
	switch {
	case status.Signaled():
		f.log.Error("the serving process was killed", "pid", f.pid, "signal", status.Signal())
		return cli.ExitStatus(128 + int(status.Signal()))
	case status.ExitStatus() != 0:
		return cli.ExitStatus(status.ExitStatus())
	}
	return nil
}

func (f *first) pass(s os.Signal) {
	if err := syscall.Kill(f.pid, s.(syscall.Signal)); err != nil {
		f.log.Warn("a signal was not passed on", "signal", s, "pid", f.pid, "error", err)
	}
}

// replaced reports whether the process that has ended was replaced by another child of this one, and records its id. The
// kernel names the process that listens.
func (f *first) replaced(status syscall.WaitStatus) bool {
	if !status.Exited() || status.ExitStatus() != 0 {
		return false
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: f.socket, Net: "unix"})
	if err != nil {
		return false
	}
	conn, err := wire.NewConn(c, wire.Limits{})
	if err != nil {
		return false
	}
	defer conn.Close()
	pid := int(conn.Peer().PID)
	if pid == f.pid || pid <= 0 || !isChild(pid) {
		return false
	}
	f.pid = pid
	return true
}

// isChild reports whether a process is a child of this one.
func isChild(pid int) bool {
	var info unix.Siginfo
	return unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) == nil
}

// reap waits for the children of this process until the given one has ended, and returns its status.
func reap(pid int) (status syscall.WaitStatus) {
	for {
		got, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return syscall.WaitStatus(1 << 8) // exit status 1: there is no such child
		case got == pid:
			return status
		}
	}
}

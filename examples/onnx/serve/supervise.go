//go:build linux

package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// WorkerVariable is the environment variable that marks a process as a worker. Its value is the worker's number.
const WorkerVariable = "ONNX_SERVE_WORKER"

// The pause before a worker is started again doubles up to maxRestartDelay while workers end within that time.
const (
	restartDelay    = 50 * time.Millisecond
	maxRestartDelay = 5 * time.Second
)

// Supervise opens the port and runs the workers, which are this program with WorkerVariable, until ctx ends and they have
// drained. A worker that ends is started again. The port stays open meanwhile: its connections wait for another worker.
func Supervise(ctx context.Context, address string, workers int, drain time.Duration) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer listener.Close()
	file, err := inheritable(listener.(*net.TCPListener))
	if err != nil {
		return err
	}
	defer file.Close()
	slog.Info("serving", "address", "http://"+listener.Addr().String(), "workers", workers)
	var running sync.WaitGroup
	for i := range workers {
		running.Go(func() { keepRunning(ctx, i+1, file, drain) })
	}
	<-ctx.Done()
	listener.Close() // the workers close theirs; the kernel refuses new connections
	running.Wait()
	slog.Info("drained")
	return nil
}

// keepRunning runs a worker again and again until ctx ends.
func keepRunning(ctx context.Context, number int, listener *os.File, drain time.Duration) {
	delay := restartDelay
	for ctx.Err() == nil {
		begin := time.Now()
		err := runWorker(ctx, number, listener, drain)
		if ctx.Err() != nil {
			return
		}
		slog.Warn("a worker ended and is started again", "worker", number, "error", err)
		if time.Since(begin) > maxRestartDelay {
			delay = restartDelay
		}
		select {
		case <-time.After(delay):
			delay = min(2*delay, maxRestartDelay)
		case <-ctx.Done():
		}
	}
}

// runWorker runs one worker to its end. It borrows the listener.
func runWorker(ctx context.Context, number int, listener *os.File, drain time.Duration) error {
	worker := exec.CommandContext(ctx, os.Args[0], os.Args[1:]...)
	worker.Env = append(os.Environ(), WorkerVariable+"="+strconv.Itoa(number), fmt.Sprintf("%s=%d", startedVariable, time.Now().UnixNano()))
	worker.ExtraFiles = []*os.File{listener} // descriptor 3 of the worker
	worker.Stdout, worker.Stderr = os.Stdout, os.Stderr
	worker.Cancel = func() error { return worker.Process.Signal(syscall.SIGTERM) }
	worker.WaitDelay = drain + time.Second
	alive, err := worker.StdinPipe() // the worker drains when it is closed, so it does not outlive a killed supervisor
	if err != nil {
		return err
	}
	defer alive.Close()
	if err := worker.Start(); err != nil {
		return err
	}
	return worker.Wait()
}

// inheritable returns a descriptor of the listener for workers, which the caller closes. Workers share its open file
// description, which must stay non-blocking, or a worker would block in accept after another one took the connection. A
// File that was created from a blocking descriptor is not changed when a process is started.
func inheritable(listener *net.TCPListener) (file *os.File, err error) {
	raw, err := listener.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		var duplicate uintptr
		var errno syscall.Errno
		if duplicate, _, errno = syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_DUPFD_CLOEXEC, 0); errno != 0 {
			failed = errno
			return
		}
		failed = syscall.SetNonblock(int(duplicate), false)
		file = os.NewFile(duplicate, "listener")
		failed = errors.Join(failed, syscall.SetNonblock(int(duplicate), true))
	})
	return file, errors.Join(err, failed)
}

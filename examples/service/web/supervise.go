//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// inheritable returns a descriptor of the listener for workers, which the caller closes. All workers share its open
// file description, which must stay non-blocking: otherwise a worker would block in accept after another one took the
// connection. Starting a process calls [os.File.Fd], which makes it blocking unless it was when the File was created.
func inheritable(listener *net.TCPListener) (*os.File, error) {
	raw, err := listener.SyscallConn()
	if err != nil {
		return nil, err
	}
	var file *os.File
	var failed error
	err = raw.Control(func(fd uintptr) {
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		var own int
		if own, failed = syscall.Dup(int(fd)); failed != nil {
			return
		}
		syscall.CloseOnExec(own)
		failed = syscall.SetNonblock(own, false)
		file = os.NewFile(uintptr(own), "listener")
		failed = errors.Join(failed, syscall.SetNonblock(own, true))
	})
	return file, errors.Join(err, failed)
}

// keepRunning starts a worker, and restarts it when it ends, until ctx ends. Then it asks the worker to drain and waits
// for its end.
func keepRunning(ctx context.Context, number int, listener *os.File, drain time.Duration) {
	for ctx.Err() == nil {
		err := runWorker(ctx, number, listener, drain)
		if ctx.Err() != nil {
			return
		}
		log.Printf("worker %d ended (%v) and is started again", number, err)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// runWorker runs one worker to its end. It borrows the listener.
func runWorker(ctx context.Context, number int, listener *os.File, drain time.Duration) error {
	worker := exec.CommandContext(ctx, os.Args[0], os.Args[1:]...)
	worker.Env = append(os.Environ(), fmt.Sprintf("%s=%d", workerEnv, number))
	worker.ExtraFiles = []*os.File{listener} // descriptor 3 of the worker
	worker.Stdout, worker.Stderr = os.Stdout, os.Stderr
	worker.Cancel = func() error { return worker.Process.Signal(syscall.SIGTERM) }
	worker.WaitDelay = drain + time.Second
	// The worker drains when this pipe is closed, so it does not outlive a killed supervisor.
	alive, err := worker.StdinPipe()
	if err != nil {
		return err
	}
	defer alive.Close()
	if err := worker.Start(); err != nil {
		return err
	}
	return worker.Wait()
}

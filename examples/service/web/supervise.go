package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// keepRunning starts a worker, and again whenever it ends, until ctx ends. Then it asks the worker to drain and waits
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
	worker.ExtraFiles = []*os.File{listener} // descriptor 3 there
	worker.Stdout, worker.Stderr = os.Stdout, os.Stderr
	worker.Cancel = func() error { return worker.Process.Signal(syscall.SIGTERM) }
	worker.WaitDelay = drain + time.Second
	// The worker drains when this end is closed, so that none outlives a supervisor that was killed.
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

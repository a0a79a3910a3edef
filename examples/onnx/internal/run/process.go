//go:build linux

// Package run starts the programs of this example for the demonstration and the tests, and measures them.
package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Programs is a folder with onnx-split and onnx-serve.
type Programs struct{ dir string }

// Build compiles the programs of this module into dir.
func Build(ctx context.Context, dir string) (Programs, error) {
	build := exec.CommandContext(ctx, "go", "build", "-o", dir+string(os.PathSeparator), "example.com/onnx/onnx-split", "example.com/onnx/onnx-serve")
	if said, err := build.CombinedOutput(); err != nil {
		return Programs{}, fmt.Errorf("building: %w: %s", err, said)
	}
	return Programs{dir}, nil
}

// Split runs onnx-split.
func (p Programs) Split(ctx context.Context, args ...string) error {
	if said, err := exec.CommandContext(ctx, filepath.Join(p.dir, "onnx-split"), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("onnx-split: %w: %s", err, said)
	}
	return nil
}

// Process is a running onnx-serve: an owner, or a supervisor with workers.
type Process struct {
	// PID is the process id.
	PID int
	// URL is the address of a service.
	URL string

	command *exec.Cmd
	log     *logBuffer
	ended   chan error
}

// Owner starts an owner of name=prefix and waits until it serves.
func (p Programs) Owner(ctx context.Context, socket, name, prefix string) (*Process, error) {
	o, err := p.start("-socket", socket, "-publish", name+"="+prefix)
	if err != nil {
		return nil, err
	}
	if _, err := o.WaitLog(ctx, `published .*version=(\d+)`, 1); err != nil {
		return nil, errors.Join(err, o.Kill())
	}
	return o, nil
}

// Service starts a supervisor with n workers and waits until they all serve. args are flags of onnx-serve.
func (p Programs) Service(ctx context.Context, n int, args ...string) (*Process, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // find a free port
	if err != nil {
		return nil, err
	}
	address := listener.Addr().String()
	listener.Close()
	s, err := p.start(append([]string{"-listen", address, "-workers", strconv.Itoa(n)}, args...)...)
	if err != nil {
		return nil, err
	}
	s.URL = "http://" + address
	if _, err := s.WaitLog(ctx, ` ready pid=(\d+)`, n); err != nil {
		return nil, errors.Join(err, s.Kill())
	}
	return s, nil
}

func (p Programs) start(args ...string) (*Process, error) {
	s := &Process{log: &logBuffer{changed: make(chan struct{})}, ended: make(chan error, 1)}
	s.command = exec.Command(filepath.Join(p.dir, "onnx-serve"), args...)
	s.command.Stderr = s.log
	s.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := s.command.Start(); err != nil {
		return nil, err
	}
	s.PID = s.command.Process.Pid
	go func() {
		s.ended <- s.command.Wait()
		s.log.close()
	}()
	return s, nil
}

// WaitLog waits until a pattern has occurred n times in the process's log, and returns all matches.
func (s *Process) WaitLog(ctx context.Context, pattern string, n int) ([][]string, error) {
	expression := regexp.MustCompile(pattern)
	for {
		text, changed, closed := s.log.read()
		if found := expression.FindAllStringSubmatch(text, -1); len(found) >= n {
			return found, nil
		}
		if closed {
			return nil, fmt.Errorf("onnx-serve ended: %s", text)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w; the log of onnx-serve: %s", context.Cause(ctx), text)
		}
	}
}

// Log returns what the process and its workers have logged.
func (s *Process) Log() string {
	text, _, _ := s.log.read()
	return text
}

// Signal sends a signal to the process.
func (s *Process) Signal(signal syscall.Signal) error { return s.command.Process.Signal(signal) }

// Stop sends SIGTERM and returns the error with which the process ends.
func (s *Process) Stop() error {
	if err := s.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return s.wait()
}

// Kill ends the process with SIGKILL. Workers drain and end with their supervisor.
func (s *Process) Kill() error {
	_ = s.command.Process.Kill() // best effort: it may have ended
	_ = s.wait()
	return nil
}

// wait returns the error with which the process ended, or one if it does not end.
func (s *Process) wait() error {
	select {
	case err := <-s.ended:
		s.ended <- err
		return err
	case <-time.After(30 * time.Second):
		return fmt.Errorf("process %d did not end; its log: %s", s.PID, s.Log())
	}
}

// Workers returns the ids of the process's children.
func (s *Process) Workers() ([]int, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.PID)) // each thread has own children
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range threads {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the thread has ended
		}
		if err != nil {
			return nil, err
		}
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// PSS returns the proportional set size of processes in bytes: private pages, and of each shared page its part.
func PSS(pids ...int) (int64, error) {
	var sum int64
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		_, rest, _ := bytes.Cut(text, []byte("\nPss:"))
		var kib int64
		if _, err := fmt.Sscan(string(rest), &kib); err != nil {
			return 0, fmt.Errorf("smaps_rollup of %d: %w", pid, err)
		}
		sum += kib << 10
	}
	return sum, nil
}

// logBuffer collects a log.
type logBuffer struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{} // closed at each change
	closed  bool
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
	return l.text.Write(p)
}

func (l *logBuffer) read() (text string, changed <-chan struct{}, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String(), l.changed, l.closed
}

func (l *logBuffer) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	close(l.changed)
	l.changed = make(chan struct{})
}

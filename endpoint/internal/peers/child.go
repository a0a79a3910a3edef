package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// childEnv names the peer that this process serves; it is set in children only. socketEnv is where.
const (
	childEnv  = "PEERS_CHILD"
	socketEnv = "PEERS_SOCKET"
)

// server is a process that serves one peer. It answers each line on its standard input with what it has spent so far,
// and ends when that input does, so it outlives nobody.
type server struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startServer starts one. It is ready when startServer returns.
func startServer(p peer, socket string) (*server, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+p.name, socketEnv+"="+socket)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{cmd: cmd, in: in, out: bufio.NewReader(out)}
	if _, err := s.spent(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the server of %s: %w", p.name, err), s.Close())
	}
	return s, nil
}

// spent is what the process has spent so far.
func (s *server) spent() (e expense, err error) {
	if _, err := io.WriteString(s.in, "\n"); err != nil {
		return e, err
	}
	_, err = fmt.Fscanln(s.out, &e.objects, &e.processor)
	return e, err
}

// Close ends the process.
func (s *server) Close() error {
	s.in.Close()
	return s.cmd.Wait()
}

// serveChild is the main function of a server.
func serveChild() error {
	p, err := find(os.Getenv(childEnv))
	if err != nil {
		return err
	}
	served, err := p.serve(os.Getenv(socketEnv))
	if err != nil {
		return fmt.Errorf("serve %s: %w", p.name, err)
	}
	defer served.Close()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		e := spent()
		fmt.Println(e.objects, int64(e.processor))
	}
	return nil
}

// expense is what a process has spent: objects that it allocated, and time of all its processors, in the kernel too.
type expense struct {
	objects   uint64
	processor time.Duration
}

// spent is what this process has spent so far.
func spent() expense {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it knows of no failure for these arguments
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return expense{objects: m.Mallocs, processor: time.Duration(u.Utime.Nano() + u.Stime.Nano())}
}

// since is what was spent after an earlier time.
func (e expense) since(then expense) expense {
	return expense{objects: e.objects - then.objects, processor: e.processor - then.processor}
}

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

// childEnv is the variable with the name of the peer to serve, set in children only. socketEnv is the variable with the
// socket.
const (
	childEnv  = "PEERS_CHILD"
	socketEnv = "PEERS_SOCKET"
)

// server is a process that serves one peer. It answers each line on its standard input with its expense so far, and
// ends at the end of the input, so that it does not outlive its parent.
type server struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startServer starts a server and returns when it is ready.
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

// spent returns the expense of the process so far.
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

// expense is the number of objects that a process has allocated, and its processor time, including the kernel's.
type expense struct {
	objects   uint64
	processor time.Duration
}

// spent returns the expense of this process so far.
func spent() expense {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // cannot fail with these arguments
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return expense{objects: m.Mallocs, processor: time.Duration(u.Utime.Nano() + u.Stime.Nano())}
}

// since returns the difference to an earlier expense.
func (e expense) since(then expense) expense {
	return expense{objects: e.objects - then.objects, processor: e.processor - then.processor}
}

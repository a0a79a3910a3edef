package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// childEnv names the peer that this process serves; it is set in children only. socketEnv is where.
const (
	childEnv  = "PEERS_CHILD"
	socketEnv = "PEERS_SOCKET"
)

// server is a process that serves one peer. It answers each line on its standard input with the number of objects that it has
// allocated so far, and ends when that input does, so it outlives nobody.
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
	if _, err := s.allocations(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the server of %s: %w", p.name, err), s.Close())
	}
	return s, nil
}

// allocations is how many objects the process has allocated so far.
func (s *server) allocations() (uint64, error) {
	if _, err := io.WriteString(s.in, "\n"); err != nil {
		return 0, err
	}
	line, err := s.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(line), 10, 64)
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
		fmt.Println(mallocs())
	}
	return nil
}

// mallocs is how many objects this process has allocated so far.
func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

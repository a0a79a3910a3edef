package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// stage owns the processes, sockets and clients of one benchmark.
type stage struct {
	ctx     context.Context
	options Options
	dev     *host.Device
	dir     string // for sockets, whose paths must be short
	janitor *process
	sockets int
	undo    []func()
}

// newStage returns an empty stage. Everything it starts also ends with ctx.
func newStage(ctx context.Context, o Options) (*stage, error) {
	dev, err := host.Open()
	if err != nil {
		return nil, err
	}
	s := &stage{ctx: ctx, options: o, dev: dev}
	if s.dir, err = s.tempDir(""); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// tempDir returns a directory that only this user can access. It is removed with the stage, or by a worker process if
// this process is killed.
func (s *stage) tempDir(parent string) (_ string, err error) {
	if s.janitor == nil {
		if s.janitor, err = s.start(); err != nil {
			return "", err
		}
	}
	dir, err := os.MkdirTemp(parent, directoryPrefix)
	if err != nil {
		return "", err
	}
	s.undo = append(s.undo, func() { _ = os.RemoveAll(dir) })
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	_, err = s.janitor.do(order{Do: "tidy", Socket: dir})
	return dir, err
}

// directoryPrefix begins the names of benchmark directories.
const directoryPrefix = "sharedtensor-bench-"

// close ends all processes and closes all clients, in reverse order of creation.
func (s *stage) close() {
	for i := len(s.undo) - 1; i >= 0; i-- {
		s.undo[i]()
	}
	s.undo = nil
}

// socket returns the path of a new socket.
func (s *stage) socket() string {
	s.sockets++
	return filepath.Join(s.dir, fmt.Sprintf("%d.sock", s.sockets))
}

// process is a running worker.
type process struct {
	ctx    context.Context
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	bare   *net.UnixConn // this process's side of its bare socket
	stderr bytes.Buffer  // read only after the process has ended
	ended  bool
}

// start starts a worker.
func (s *stage) start() (_ *process, err error) {
	cmd, err := s.options.Worker(s.ctx)
	if err != nil {
		return nil, err
	}
	near, far, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer far.Close()
	p := &process{ctx: s.ctx, cmd: cmd, bare: near}
	defer func() {
		if err != nil {
			near.Close()
		}
	}()
	cmd.ExtraFiles = []*os.File{far} // becomes bareDescriptor in the worker
	cmd.Stderr = &p.stderr
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = json.NewDecoder(out)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	s.undo = append(s.undo, p.kill)
	return p, nil
}

// kill ends the process with SIGKILL and waits until it has ended.
func (p *process) kill() {
	if p.ended {
		return
	}
	p.ended = true
	p.bare.Close()
	_ = p.cmd.Process.Kill() // best effort: it may have ended already
	_ = p.cmd.Wait()         // the error only reports the kill
}

// do sends an order and waits for its report.
func (p *process) do(o order) (report, error) {
	var r report
	err := json.NewEncoder(p.in).Encode(o)
	if err == nil {
		err = p.out.Decode(&r)
	}
	if err != nil {
		return r, p.died(o, err)
	}
	switch {
	case r.OutOfMemory:
		return r, fmt.Errorf("%s: %w: %s", o.Do, driver.ErrOutOfMemory, r.Error)
	case r.Error != "":
		return r, fmt.Errorf("%s: %s", o.Do, r.Error)
	}
	return r, nil
}

// died returns why a worker does not answer: the benchmark was cancelled, or the worker crashed.
func (p *process) died(o order, err error) error {
	p.kill()
	if cause := context.Cause(p.ctx); cause != nil {
		return cause
	}
	said, _, _ := strings.Cut(strings.TrimSpace(p.stderr.String()), "\n")
	return fmt.Errorf("%s: the worker process ended (%v): %s: %w", o.Do, p.cmd.ProcessState, said, err)
}

// owner starts a process that serves on a new socket, and returns the socket's path.
func (s *stage) owner() (*process, string, error) {
	p, err := s.start()
	if err != nil {
		return nil, "", err
	}
	socket := s.socket()
	_, err = p.do(order{Do: "serve", Socket: socket})
	return p, socket, err
}

// client connects this process to an owner.
func (s *stage) client(socket string) (*endpoint.Client, error) {
	c, err := endpoint.Dial(s.ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{s.dev}, Label: "benchmark"})
	if err != nil {
		return nil, err
	}
	s.undo = append(s.undo, func() { _ = c.Close() })
	return c, nil
}

// far starts a process that executes the order on its side of a bare socket, and returns this side.
func (s *stage) far(o order) (*net.UnixConn, error) {
	p, err := s.start()
	if err != nil {
		return nil, err
	}
	_, err = p.do(o)
	return p.bare, err
}

// outOfMemory reports whether a model did not fit into memory.
func outOfMemory(err error) bool { return errors.Is(err, driver.ErrOutOfMemory) }

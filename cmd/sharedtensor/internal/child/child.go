// Package child runs helper processes of a command. The parent sends requests, the child answers them, as lines of JSON
// on its standard input and output. A child ends when its input ends, so it does not outlive the parent.
package child

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// Process is the parent's view of a child. It is used by one goroutine at a time.
type Process struct {
	name   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	stderr bytes.Buffer // valid after its end
	ended  bool
}

// Start starts a command that calls [Serve]. It is killed when ctx ends. name is for errors. The caller ends it with
// End or Kill.
func Start(ctx context.Context, name string, command ...string) (*Process, error) {
	p := &Process{name: name, cmd: exec.CommandContext(ctx, command[0], command[1:]...)}
	p.cmd.Stderr = &p.stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	p.in, p.out = in, json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil { // closes the pipes on failure
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// String returns the name and the process id.
func (p *Process) String() string { return fmt.Sprintf("%s, pid %d", p.name, p.PID()) }

// answered is one line of a child.
type answered[A any] struct {
	Error  string `json:",omitempty"`
	Answer A
}

// Ask sends a request and waits for the answer, a pointer. what describes the request in errors, which name the
// process.
func (p *Process) Ask(what string, request, answer any) error {
	line, err := json.Marshal(request)
	if err != nil {
		return err
	}
	var got answered[json.RawMessage]
	if _, err = p.in.Write(append(line, '\n')); err == nil {
		err = p.out.Decode(&got)
	}
	if err != nil {
		err = errors.Join(p.Kill(), fmt.Errorf("%v, ended when asked to %s (%v)", p, what, p.cmd.ProcessState))
		if text := strings.TrimSpace(p.stderr.String()); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return err
	}
	if got.Error != "" {
		return fmt.Errorf("%v: %s: %s", p, what, got.Error)
	}
	return json.Unmarshal(got.Answer, answer)
}

// Signal sends SIGKILL and does not wait.
func (p *Process) Signal() error { return p.cmd.Process.Kill() }

// Kill sends SIGKILL if the process is running, and waits for its end.
func (p *Process) Kill() error {
	if p.ended {
		return nil
	}
	p.ended = true
	_ = p.Signal() // best effort: it may have ended already
	if err := p.cmd.Wait(); p.cmd.ProcessState == nil {
		return fmt.Errorf("wait for %v: %w", p, err)
	}
	return nil
}

// End closes the standard input of the process, which makes it clean up, and waits until it has exited. It returns an
// error if the exit status is not 0.
func (p *Process) End() error {
	if p.ended {
		return nil
	}
	p.ended = true
	late := time.AfterFunc(10*time.Second, func() { _ = p.Signal() })
	defer late.Stop()
	_ = p.in.Close() // best effort: it may have ended already
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%v: %w: %s", p, err, strings.TrimSpace(p.stderr.String()))
	}
	return nil
}

// Serve executes the requests on in and writes the answers to out, until in or ctx ends. Both also end the context of a
// request.
func Serve[Q, A any](ctx context.Context, in io.Reader, out io.Writer, do func(context.Context, Q) (A, error)) error {
	// Ctrl+C reaches every process of the terminal, but the parent ends the others. If the parent has died, writes must
	// fail with an error, because SIGPIPE would end the process without cleanup.
	signal.Ignore(os.Interrupt, syscall.SIGPIPE)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	requests := make(chan Q)
	go func() {
		defer cancel()
		lines := json.NewDecoder(in)
		for {
			var q Q
			if lines.Decode(&q) != nil {
				return
			}
			select {
			case requests <- q:
			case <-ctx.Done():
				return
			}
		}
	}()
	answers := json.NewEncoder(out)
	for {
		select {
		case <-ctx.Done():
			return nil
		case q := <-requests:
			var line answered[A]
			var err error
			if line.Answer, err = do(ctx, q); err != nil {
				line.Error = err.Error()
			}
			if err := answers.Encode(line); err != nil {
				return err
			}
		}
	}
}

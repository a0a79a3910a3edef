package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// process is the director's view of another process. It is used by one goroutine at a time.
type process struct {
	report *Process
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	stderr tail
	ended  bool
}

// startProcess starts command with role and dir appended; it must run [Work]. The process is killed when ctx ends. The
// caller ends it with quit or kill.
func startProcess(ctx context.Context, command []string, role, dir string) (*process, error) {
	words := append(append([]string{}, command...), strings.ReplaceAll(role, " ", "-"), dir)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.SysProcAttr = ownGroup()
	p := &process{cmd: cmd, report: &Process{Role: role}}
	cmd.Stderr = &p.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	if err := cmd.Start(); err != nil { // closes the pipes on failure
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	p.in, p.out, p.report.PID = in, json.NewDecoder(out), cmd.Process.Pid
	return p, nil
}

// ask sends a request and waits for the answer; progress may be nil. If a quick request takes longer than stepTimeout,
// the process is killed. Errors name the process.
func (p *process) ask(ctx context.Context, r request, progress func(done, total int64)) (_ reply, err error) {
	if ctx.Err() != nil {
		return reply{}, context.Cause(ctx)
	}
	if r.quick() {
		var late atomic.Bool
		timer := time.AfterFunc(stepTimeout, func() {
			late.Store(true)
			_ = p.signalKill() // unblocks the reader below
		})
		defer func() {
			if timer.Stop(); err != nil && late.Load() {
				err = fmt.Errorf("%s, pid %d, was asked to %s and did not answer within %v", p.report.Role, p.report.PID, r.Op, stepTimeout)
			}
		}()
	}
	line, err := json.Marshal(r)
	if err != nil {
		return reply{}, err
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return reply{}, p.lost(r.Op)
	}
	for {
		var answer reply
		if err := p.out.Decode(&answer); err != nil {
			return reply{}, p.lost(r.Op)
		}
		if answer.Progress == nil {
			if err := answer.err(); err != nil {
				return reply{}, fmt.Errorf("%s, pid %d: %w", p.report.Role, p.report.PID, err)
			}
			return answer, nil
		}
		if progress != nil {
			progress(answer.Progress.Done, answer.Progress.Total)
		}
	}
}

// lost returns an error that reports how a process ended unexpectedly.
func (p *process) lost(op string) error {
	err := p.kill()
	if text := p.stderr.String(); text != "" {
		return fmt.Errorf("%s, pid %d, ended when asked to %s (%v): %s", p.report.Role, p.report.PID, op, p.cmd.ProcessState, text)
	}
	return errors.Join(fmt.Errorf("%s, pid %d, ended when asked to %s: %v", p.report.Role, p.report.PID, op, p.cmd.ProcessState), err)
}

// signalKill sends SIGKILL and does not wait.
func (p *process) signalKill() error { return p.cmd.Process.Kill() }

// kill sends SIGKILL if the process is running, and waits for its end. A second call returns nil.
func (p *process) kill() error {
	if p.ended {
		return nil
	}
	p.ended = true
	_ = p.signalKill() // best effort: it may have ended already
	if err := p.cmd.Wait(); p.cmd.ProcessState == nil {
		return fmt.Errorf("wait for %s: %w", p.report.Role, err)
	}
	p.report.End = p.cmd.ProcessState.String()
	return nil
}

// quitTimeout limits the time a process may take to close its resources.
const quitTimeout = 10 * time.Second

// quit requests the process to clean up, and waits until it has exited. It returns an error if the exit status is not
// 0.
func (p *process) quit(ctx context.Context) error {
	if p.ended {
		return nil
	}
	if _, err := p.ask(ctx, request{Op: opQuit}, nil); err != nil {
		return err
	}
	p.ended = true
	late := time.AfterFunc(quitTimeout, func() { _ = p.signalKill() })
	defer late.Stop()
	err := p.cmd.Wait()
	p.report.End = p.cmd.ProcessState.String()
	if err != nil {
		return fmt.Errorf("%s, pid %d: %w: %s", p.report.Role, p.report.PID, err, p.stderr.String())
	}
	return nil
}

// tail keeps the end of the data written to it. The zero value is ready to use.
type tail struct {
	mu   sync.Mutex
	data []byte
}

const tailBytes = 2048

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, b...)
	if extra := len(t.data) - tailBytes; extra > 0 {
		t.data = append(t.data[:0], t.data[extra:]...)
	}
	return len(b), nil
}

// String returns the retained text.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.data))
}

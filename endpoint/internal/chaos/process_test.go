//go:build unix

package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a child, as seen by its parent.
type process struct {
	a     assignment
	cmd   *exec.Cmd
	in    io.WriteCloser
	ready chan struct{} // closed when the process is ready
	ended chan struct{} // closed when the process has ended and all its reports were read
	done  chan command

	mu     sync.Mutex
	errors tail
	killed bool // killed by the parent, so its end is not a failure
}

// tail keeps the last bytes that were written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - 64<<10; over > 0 {
		t.text = t.text[over:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// startProcess starts a child. onReport is called with each report.
func startProcess(a assignment, onReport func(*process, report)) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	role, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	p := &process{a: a, cmd: exec.Command(exe), ready: make(chan struct{}), ended: make(chan struct{}), done: make(chan command, 1)}
	p.cmd.Env = append(os.Environ(), roleEnv+"="+string(role), "GORACE=halt_on_error=1")
	if a.Index%3 == 2 { // the others use rings
		p.cmd.Env = append(p.cmd.Env, "SHARED_TENSOR_RING=off")
	}
	p.cmd.Stderr = &p.errors
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.listen(out, onReport)
	return p, nil
}

// listen reads reports until the process ends.
func (p *process) listen(out io.Reader, onReport func(*process, report)) {
	defer close(p.ended)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var r report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			break // it was killed while writing a line
		}
		if r.Ready {
			close(p.ready)
		}
		onReport(p, r)
		if r.Done != "" {
			p.done <- r.Done
		}
	}
	_, _ = io.Copy(io.Discard, out)
	err := p.cmd.Wait()
	p.mu.Lock()
	killed := p.killed
	p.mu.Unlock()
	if text := strings.TrimSpace(p.errors.String()); text != "" || err != nil && !killed {
		onReport(p, report{Failure: fmt.Sprintf("%s ended: %v\n%s", p.a, err, text)})
	}
}

// send sends a command and waits until it is completed.
func (p *process) send(c command, limit time.Duration) error {
	if _, err := io.WriteString(p.in, string(c)+"\n"); err != nil {
		return fmt.Errorf("%s: %s: %w", p.a, c, err)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case done := <-p.done:
		if done != c {
			return fmt.Errorf("%s: %s is done instead of %s", p.a, done, c)
		}
		return nil
	case <-p.ended:
		return fmt.Errorf("%s ended at %s", p.a, c)
	case <-timer.C:
		_ = p.cmd.Process.Signal(syscall.SIGABRT) // prints the stacks; best effort: the process may have ended
		<-p.ended
		return fmt.Errorf("%s: HANG: %s not completed after %v", p.a, c, limit)
	}
}

// kill ends the process at once and waits for it.
func (p *process) kill() {
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	_ = p.cmd.Process.Kill() // also ends a stopped process; best effort: it may have ended
	<-p.ended
}

// stop suspends the process for a time.
func (p *process) stop(d time.Duration) {
	_ = p.cmd.Process.Signal(syscall.SIGSTOP) // best effort: the process may have ended
	time.Sleep(d)
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
}

// leave waits for a process that is expected to exit.
func (p *process) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed = true
}

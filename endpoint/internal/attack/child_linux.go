package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// roleEnv is the variable with the assignment of a child, as JSON. A child reads commands as lines from standard input
// and writes reports as lines of JSON to standard output. It ends at the end of its input, so that it does not outlive
// its parent.
const roleEnv = "ATTACK_CHILD"

// assignment is the configuration of a child.
type assignment struct {
	Role   string // "owner", "honest" or "attacker"
	Socket string
	Attack string        `json:",omitempty"`
	Scale  float64       `json:",omitempty"`
	Hold   time.Duration `json:",omitempty"`
	// Limits of the owner.
	Files   uint64 `json:",omitempty"` // RLIMIT_NOFILE
	Address uint64 `json:",omitempty"` // RLIMIT_AS, in addition to the address space in use at the start
	Memory  int64  `json:",omitempty"` // memory size that the owner's device reports
	Group   string `json:",omitempty"` // control group of the owner
}

// report is one message of a child.
type report struct {
	Ready   bool     `json:",omitempty"`
	Failure string   `json:",omitempty"`
	Heap    int64    `json:",omitempty"` // of the owner, after a garbage collection
	Heard   []string `json:",omitempty"` // received by the attacker
	Honest  *honest  `json:",omitempty"`
}

// childMain is the main function of a child.
func childMain() int {
	var a assignment
	if err := json.Unmarshal([]byte(os.Getenv(roleEnv)), &a); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // warnings of owners and clients are expected here
	lines := bufio.NewScanner(os.Stdin)
	next := func() bool { return lines.Scan() }
	out := json.NewEncoder(os.Stdout)
	send := func(r report) { _ = out.Encode(r) } // best effort: if the parent has ended, so has the input
	err := fmt.Errorf("unknown role %q", a.Role)
	switch a.Role {
	case "owner":
		err = ownerMain(a, send, next)
	case "honest":
		err = honestMain(a, send, next)
	case "attacker":
		err = attackerMain(a, send, next)
	}
	if err != nil {
		send(report{Failure: err.Error()})
		return 1
	}
	return 0
}

// process is a child, as seen by its parent.
type process struct {
	role    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	reports chan report // closed when the process ends
	errors  outputTail
}

// outputTail keeps the last bytes that were written to it.
type outputTail struct {
	mu   sync.Mutex
	text []byte
}

func (w *outputTail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p...)
	if over := len(w.text) - 4096; over > 0 {
		w.text = w.text[over:]
	}
	return len(p), nil
}

func (w *outputTail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(string(w.text))
}

// startChild starts a child. If program is "", it uses this executable.
func startChild(program string, a assignment) (*process, error) {
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	role, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	p := &process{role: a.Role, cmd: exec.Command(program), reports: make(chan report, 16)}
	p.cmd.Env = append(os.Environ(), roleEnv+"="+string(role))
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
	go func() {
		defer close(p.reports)
		for d := json.NewDecoder(out); ; {
			var r report
			if d.Decode(&r) != nil {
				_ = p.cmd.Wait() // failures are reported by the child
				return
			}
			p.reports <- r
		}
	}()
	return p, nil
}

// receive waits for a report.
func (p *process) receive(limit time.Duration) (report, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case r, ok := <-p.reports:
		switch {
		case !ok:
			return r, fmt.Errorf("the %s ended: %s", p.role, p.errors.String())
		case r.Failure != "":
			return r, errors.New(p.role + ": " + r.Failure)
		}
		return r, nil
	case <-timer.C:
		return report{}, fmt.Errorf("no report from the %s within %v", p.role, limit)
	}
}

// request sends a line and waits for the report in response.
func (p *process) request(line string, limit time.Duration) (report, error) {
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		return report{}, fmt.Errorf("the %s has ended: %w", p.role, err)
	}
	return p.receive(limit)
}

// kill kills the process and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	for range p.reports { // until it has ended
		continue
	}
}

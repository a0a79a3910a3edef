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

// roleEnv has the assignment of a child, as JSON. Children get commands as lines on standard input and write reports as
// lines of JSON on standard output; the end of the input ends them, so they outlive nobody.
const roleEnv = "ATTACK_CHILD"

// assignment says what a child is.
type assignment struct {
	Role   string // "owner", "honest" or "attacker"
	Socket string
	Attack string        `json:",omitempty"`
	Scale  float64       `json:",omitempty"`
	Hold   time.Duration `json:",omitempty"`
	// What the owner may have.
	Files   uint64 `json:",omitempty"` // RLIMIT_NOFILE
	Address uint64 `json:",omitempty"` // RLIMIT_AS, beyond what it has when it starts
	Memory  int64  `json:",omitempty"` // what its device says that there is
	Group   string `json:",omitempty"` // the control group that it goes into
}

// report is what a child says.
type report struct {
	Ready   bool     `json:",omitempty"`
	Failure string   `json:",omitempty"`
	Heap    int64    `json:",omitempty"` // of the owner, after a collection
	Heard   []string `json:",omitempty"` // by the attacker
	Honest  *honest  `json:",omitempty"`
}

// childMain is the main function of a child.
func childMain() int {
	var a assignment
	if err := json.Unmarshal([]byte(os.Getenv(roleEnv)), &a); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // that owners and clients warn is expected here
	lines := bufio.NewScanner(os.Stdin)
	next := func() bool { return lines.Scan() }
	out := json.NewEncoder(os.Stdout)
	say := func(r report) { _ = out.Encode(r) } // a parent that is gone ends the input too
	err := fmt.Errorf("no role %q", a.Role)
	switch a.Role {
	case "owner":
		err = ownerMain(a, say, next)
	case "honest":
		err = honestMain(a, say, next)
	case "attacker":
		err = attackerMain(a, say, next)
	}
	if err != nil {
		say(report{Failure: err.Error()})
		return 1
	}
	return 0
}

// process is a child, seen by its parent.
type process struct {
	role    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	reports chan report // closed when it ends
	errors  lastWords
}

// lastWords is the end of what was written to it.
type lastWords struct {
	mu   sync.Mutex
	text []byte
}

func (w *lastWords) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p...)
	if over := len(w.text) - 4096; over > 0 {
		w.text = w.text[over:]
	}
	return len(p), nil
}

func (w *lastWords) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(string(w.text))
}

// startChild starts a child with a program, or with this one.
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
				_ = p.cmd.Wait() // whether it was killed or not is seen by what it reported
				return
			}
			p.reports <- r
		}
	}()
	return p, nil
}

// hear waits for a report.
func (p *process) hear(limit time.Duration) (report, error) {
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
		return report{}, fmt.Errorf("the %s says nothing for %v", p.role, limit)
	}
}

// ask sends a line and waits for the report that answers it.
func (p *process) ask(line string, limit time.Duration) (report, error) {
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		return report{}, fmt.Errorf("the %s is gone: %w", p.role, err)
	}
	return p.hear(limit)
}

// kill ends the process at once and waits for it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	for range p.reports { // until it has ended
		continue
	}
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// state is the memory of an owner in bytes. Memory is its private memory plus the content of the memory files that it
// has open. Heap is the Go heap in use, which is part of it.
type state struct {
	Memory int64 `json:"memory"`
	Heap   int64 `json:"heap"`
}

// measured is the result of one attack. Sizes are bytes.
type measured struct {
	Attack  string   `json:"attack"`
	What    string   `json:"what"`
	Before  state    `json:"before"`
	Peak    int64    `json:"peak_memory"`
	After   state    `json:"after"`
	Seconds float64  `json:"seconds"`
	Honest  *honest  `json:"honest,omitempty"`
	Heard   []string `json:"attacker_heard,omitempty"`
	// Ended reports whether the attack ended the owner. Skipped is the reason why the attack could not run.
	Ended   bool   `json:"owner_ended,omitempty"`
	Skipped string `json:"skipped,omitempty"`
	Failure string `json:"failure,omitempty"`
}

// Timeouts for reports of children.
const (
	startLimit  = 20 * time.Second
	attackLimit = 3 * time.Minute
	settleLimit = 10 * time.Second
)

// measure runs one attack on a new owner.
func (p *plan) measure(ctx context.Context, a attack) (row measured, err error) {
	row = measured{Attack: a.name, What: a.what}
	dir, err := os.MkdirTemp("", "attack")
	if err != nil {
		return row, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	role := assignment{
		Role: "owner", Socket: filepath.Join(dir, "s.sock"), Attack: a.name, Scale: p.Scale, Hold: p.Hold,
		Files: a.files, Address: a.address, Memory: p.Memory,
	}
	if a.group > 0 {
		g, err := newGroup(a.name, a.group)
		if err != nil {
			row.Skipped = err.Error()
			return row, nil
		}
		defer g.remove()
		role.Group = string(g)
	}
	owner, err := startChild(p.Owner, role)
	if err != nil {
		return row, err
	}
	defer owner.kill()
	if _, err := owner.receive(startLimit); err != nil {
		return row, err
	}
	role.Role = "honest"
	good, err := startChild("", role)
	if err != nil {
		return row, err
	}
	defer good.kill()
	if _, err := good.receive(startLimit); err != nil {
		return row, err
	}
	return row, p.attack(ctx, a, role, owner, good, &row)
}

// attack runs the attacker and fills in the row.
func (p *plan) attack(ctx context.Context, a attack, role assignment, owner, good *process, row *measured) error {
	var err error
	if row.Before, err = owner.state(); err != nil {
		return err
	}
	peak := watchPeak(owner.cmd.Process.Pid)
	defer peak()
	if _, err := good.in.Write([]byte("go\n")); err != nil {
		return err
	}
	role.Role = "attacker"
	bad, err := startChild("", role)
	if err != nil {
		return err
	}
	defer bad.kill()
	stop := context.AfterFunc(ctx, func() { _ = bad.cmd.Process.Kill() })
	defer stop()
	start := time.Now()
	if _, err := bad.receive(attackLimit); err != nil && !owner.exited() {
		return err
	}
	row.Seconds = time.Since(start).Seconds()
	if last, err := bad.receive(attackLimit); err == nil {
		row.Heard = last.Heard
	} else if !owner.exited() {
		return err
	}
	if seen, err := good.request("stop", attackLimit); err == nil {
		row.Honest = seen.Honest
	}
	bad.kill()
	time.Sleep(p.Hold / 2) // until the owner has closed the connections
	row.Peak = peak()
	if err := owner.settle(a.kept<<20, row); err != nil {
		row.Ended, row.Failure = true, err.Error()
	}
	return nil
}

// settle records the state of the owner after an attack. Results that were in progress when the attacker was killed are
// closed when they are done, so settle waits until no more than kept bytes remain, at most settleLimit.
func (p *process) settle(kept int64, row *measured) error {
	for end := time.Now().Add(settleLimit); ; time.Sleep(50 * time.Millisecond) {
		var err error
		if row.After, err = p.state(); err != nil {
			return err
		}
		if row.After.Memory-row.Before.Memory <= kept || time.Now().After(end) {
			return nil
		}
	}
}

// exited reports whether the process has ended.
func (p *process) exited() bool { return p.cmd.Process.Signal(unix.Signal(0)) != nil }

// state requests the state of an owner.
func (p *process) state() (state, error) {
	r, err := p.request("heap", startLimit)
	return state{Memory: resident(p.cmd.Process.Pid), Heap: r.Heap}, err
}

// resident returns the memory of a process: its anonymous memory, and the allocated size of each memory file that it
// has open, mapped or not. It returns 0 if the process has ended.
func resident(pid int) (sum int64) {
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	open, err := os.ReadDir(folder)
	if err != nil {
		return 0
	}
	seen := map[uint64]bool{}
	for _, f := range open {
		path := filepath.Join(folder, f.Name())
		var st unix.Stat_t
		if target, err := os.Readlink(path); err != nil || !strings.HasPrefix(target, "/memfd:") || unix.Stat(path, &st) != nil || seen[st.Ino] {
			continue
		}
		seen[st.Ino] = true
		sum += st.Blocks * 512
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) > 1 && string(f[0]) == "RssAnon:" {
			n, _ := strconv.ParseInt(string(f[1]), 10, 64) // the kernel's number is valid
			sum += n << 10
		}
	}
	return sum
}

// watchPeak samples the memory of a process until the returned function is called. That function returns the maximum.
func watchPeak(pid int) (end func() int64) {
	stop, peak := make(chan struct{}), make(chan int64, 1)
	go func() {
		var most int64
		for {
			most = max(most, resident(pid))
			select {
			case <-stop:
				peak <- most
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return sync.OnceValue(func() int64 {
		close(stop)
		return <-peak
	})
}

// group is the directory of a memory control group.
type group string

// newGroup creates a control group with a limit for an attack. It returns an error if this process lacks permission.
func newGroup(attack string, bytes uint64) (group, error) {
	name := fmt.Sprintf("attack-%s-%d", attack, os.Getpid())
	var errs error
	for _, kind := range [][2]string{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}} {
		g := group(filepath.Join(kind[0], name))
		err := os.Mkdir(string(g), 0o755)
		if err == nil {
			if err = os.WriteFile(filepath.Join(string(g), kind[1]), []byte(strconv.FormatUint(bytes, 10)), 0); err == nil {
				return g, nil
			}
			g.remove()
		}
		errs = errors.Join(errs, err)
	}
	return "", fmt.Errorf("cannot create a control group: %w", errs)
}

func (g group) remove() { _ = os.Remove(string(g)) } // best effort: a remaining group costs nothing

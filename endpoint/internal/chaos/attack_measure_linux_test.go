package chaos_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
)

// measured is the result of one attack. Memory is the owner's private memory plus the content of the memory files that
// it has open, in bytes. Heap is the part of After that is Go heap in use.
type measured struct {
	Before, Peak, After, Heap int64
	Honest                    *honest
	Heard                     []string // received by the attacker
}

// settleLimit is the maximum time until an owner has released the resources of an attacker.
const settleLimit = 10 * time.Second

// measure runs one attack on a new owner, an executable or "" for this one. It measures the owner before the attack, at
// its peak, and after the attacker has left. An honest client pings all the time and repeatedly connects, lists and
// publishes.
func measure(t *testing.T, a attack, program string) (row measured) {
	as := assignment{
		Socket: proctest.SocketPath(t), Attack: a.name, Scale: 0.25, Hold: 400 * time.Millisecond, Files: a.files, Address: a.address, Memory: 1 << 30,
	}
	if a.group > 0 {
		g, err := newGroup(a.name, a.group)
		drivertest.Needs(t, "cgroup", err == nil, fmt.Sprint(err))
		t.Cleanup(g.remove)
		as.Group = string(g)
	}
	owner := ownerRole.Start(t, func(cmd *exec.Cmd) {
		if program != "" {
			cmd.Path = program
		}
	})
	openOwner.Must(owner, as)
	good := honestRole.Start(t)
	honestOpen.Must(good, as.Socket)
	ownerHeap.Must(owner, true)
	row.Before = resident(int(owner.PID()))
	peak := watchPeak(int(owner.PID()))
	defer peak()
	honestStart.Must(good, true)
	bad := attackerRole.Start(t)
	attackBegin.Must(bad, as)
	row.Heard = attackHeard.Must(bad, true)
	row.Honest = honestStop.Must(good, true)
	bad.Kill()
	time.Sleep(as.Hold / 2) // until the owner has closed the connections
	row.Peak = peak()
	// Results that were in progress when the attacker was killed are closed when they are done.
	for end := time.Now().Add(settleLimit); ; time.Sleep(50 * time.Millisecond) {
		row.Heap = ownerHeap.Must(owner, true)
		row.After = resident(int(owner.PID()))
		if row.After-row.Before <= a.kept<<20 || time.Now().After(end) {
			return row
		}
	}
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
			case <-time.After(25 * time.Millisecond):
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

//go:build unix

package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/keeper"
)

// roleEnv is the variable with the assignment of a child, as JSON. A child reads commands as lines from standard input
// and writes reports as lines of JSON to standard output. It ends at the end of its input, so that it does not outlive
// its parent.
const roleEnv = "CHAOS_CHILD"

// assignment is the configuration of a child.
type assignment struct {
	Role   string // "owner", "client" or "worker"
	Socket string
	Seed   uint64
	Index  int  // number of the client or worker
	Life   int  // number of earlier processes with the same index
	Keep   bool // versions survive their owner
}

// keepRole is the argument of a keeper process, before the path of its socket. It has the environment of an owner.
const keepRole = "keep"

// kept means that all owners have the versions of one catalog.
var kept bool

// sameCatalog reports whether the versions of two servers have the same numbers.
func sameCatalog(a, b string) bool { return kept || a == b }

// command is an instruction to a child.
type command string

const (
	pause  command = "pause"  // finish the current operations and start none
	verify command = "verify" // compare the state of this process with the owner's
	drop   command = "drop"   // release everything, and check that nothing remains
	resume command = "resume"
	drain  command = "drain" // owner: shut down and exit
)

// report is one message of a child.
type report struct {
	Done    command `json:",omitempty"` // the completed command
	Ready   bool    `json:",omitempty"`
	Failure string  `json:",omitempty"`
	// Ops is the number of operations since the last report. Cut is the number whose context ended first. Away is the
	// number that found no owner. Offered is the number that workers answered, and Followed the number that used a
	// version of a follower. Reused is the number of allocations in reused memory of pools.
	Ops, Cut, Away, Bytes, Offered, Followed, Reused int64 `json:",omitempty"`
	// Salts are the salts of versions, by "server name version".
	Salts map[string]uint64 `json:",omitempty"`
	Note  string            `json:",omitempty"`
}

// reporter writes reports.
type reporter struct {
	mu  sync.Mutex
	out *json.Encoder
}

func (r *reporter) send(what report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.out.Encode(what) // best effort: if the parent has ended, so has the input
}

// fail reports a failure, upon which the parent ends all processes.
func (r *reporter) fail(format string, args ...any) {
	r.send(report{Failure: fmt.Sprintf(format, args...)})
}

// childMain is the main function of a child.
func childMain() int {
	if len(os.Args) == 3 && os.Args[1] == keepRole {
		if err := keeper.Serve(context.Background(), keeper.Config{Socket: os.Args[2], Idle: 2 * time.Second}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	var a assignment
	if err := json.Unmarshal([]byte(os.Getenv(roleEnv)), &a); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	kept = a.Keep
	// Disturbances cause many warnings, and no other warnings are expected.
	slog.SetDefault(slog.New(slog.DiscardHandler))
	r := &reporter{out: json.NewEncoder(os.Stdout)}
	lines := bufio.NewScanner(os.Stdin)
	commands := func() (command, bool) {
		ok := lines.Scan()
		return command(lines.Text()), ok
	}
	var err error
	switch a.Role {
	case "owner":
		err = ownerMain(a, r, commands)
	case "worker":
		err = workerMain(a, r, commands)
	default:
		err = clientMain(a, r, commands)
	}
	if err != nil {
		r.fail("%s: %v", a, err)
		return 1
	}
	return 0
}

func (a assignment) String() string {
	if a.Role == "owner" {
		return fmt.Sprintf("owner %d", a.Life)
	}
	return fmt.Sprintf("%s %d.%d", a.Role, a.Index, a.Life)
}

// counts are the resources of a process that must not leak. Maps counts the shared mappings except rings. A connection
// gets a ring after some use.
type counts struct{ Files, Maps, Rings, Goroutines int }

func (c counts) String() string {
	return fmt.Sprintf("%d descriptors, %d shared mappings, %d rings, %d goroutines", c.Files, c.Maps, c.Rings, c.Goroutines)
}

// count returns the counts of this process after two garbage collections, because cleanups queued by the first run
// before the second.
func count() counts {
	runtime.GC()
	runtime.GC()
	c := counts{Goroutines: runtime.NumGoroutine()}
	if files, err := os.ReadDir("/proc/self/fd"); err == nil {
		c.Files = len(files) - 1 // without the directory's own descriptor
	}
	if maps, err := os.ReadFile("/proc/self/maps"); err == nil {
		for line := range bytes.Lines(maps) {
			fields := bytes.Fields(line)
			switch {
			case len(fields) < 2 || !bytes.HasSuffix(fields[1], []byte("s")):
			case bytes.Contains(line, []byte("sharedtensor-ring")):
				c.Rings++
			default:
				c.Maps++
			}
		}
	}
	return c
}

// awaitCounts waits until the counts are at most base. After limit it returns an error that lists what remains.
func awaitCounts(base counts, limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		now := count()
		if now.Files <= base.Files && now.Maps <= base.Maps && now.Rings <= base.Rings && now.Goroutines <= base.Goroutines {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("LEAK: %v instead of %v\n%s", now, base, holdings())
		}
	}
}

// holdings lists descriptors, shared mappings and goroutines.
func holdings() string {
	var b strings.Builder
	if files, err := os.ReadDir("/proc/self/fd"); err == nil {
		for _, f := range files {
			target, _ := os.Readlink("/proc/self/fd/" + f.Name())
			fmt.Fprintf(&b, "descriptor %s -> %s\n", f.Name(), target)
		}
	}
	if maps, err := os.ReadFile("/proc/self/maps"); err == nil {
		for line := range bytes.Lines(maps) {
			if fields := bytes.Fields(line); len(fields) > 1 && bytes.HasSuffix(fields[1], []byte("s")) {
				b.Write(line)
			}
		}
	}
	b.WriteString(stacks())
	return b.String()
}

// stacks returns the stacks of all goroutines.
func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

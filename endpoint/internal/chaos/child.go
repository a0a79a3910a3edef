//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
)

// roleEnv has the assignment of a child, as JSON. Children get commands as lines on standard input and write reports as
// lines of JSON on standard output; the end of the input ends them, so they outlive nobody.
const roleEnv = "CHAOS_CHILD"

// assignment says what a child is.
type assignment struct {
	Role   string // "owner" or "client"
	Socket string
	Seed   uint64
	Index  int // of the client
	Life   int // how many processes had its place before
}

// command is what a child can be told.
type command string

const (
	pause  command = "pause"  // finish what is begun and begin nothing
	verify command = "verify" // compare what this process knows with what the owner says
	drop   command = "drop"   // give back everything, and see that nothing is left
	resume command = "resume"
	drain  command = "drain" // owner: shut down, and end
)

// report is what a child says.
type report struct {
	Done    command `json:",omitempty"` // the command that was carried out
	Ready   bool    `json:",omitempty"`
	Failure string  `json:",omitempty"`
	// Ops counts operations since the last report; Cut those whose context ended first, Away those that found no owner.
	Ops, Cut, Away, Bytes int64 `json:",omitempty"`
	// Salts are what was seen of versions, under "server name version".
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
	_ = r.out.Encode(what) // a parent that is gone ends the input too
}

// fail reports what was found. The parent ends everything then.
func (r *reporter) fail(format string, args ...any) {
	r.send(report{Failure: fmt.Sprintf(format, args...)})
}

// childMain is the main function of a child.
func childMain() int {
	var a assignment
	if err := json.Unmarshal([]byte(os.Getenv(roleEnv)), &a); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	// Nothing that a client or an owner warns of is expected here but what the disturbances bring about.
	slog.SetDefault(slog.New(slog.DiscardHandler))
	r := &reporter{out: json.NewEncoder(os.Stdout)}
	lines := bufio.NewScanner(os.Stdin)
	commands := func() (command, bool) {
		ok := lines.Scan()
		return command(lines.Text()), ok
	}
	var err error
	if a.Role == "owner" {
		err = ownerMain(a, r, commands)
	} else {
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
	return fmt.Sprintf("client %d.%d", a.Index, a.Life)
}

// counts is what a process has of what must not grow. Maps are shared mappings but for Rings, of which a connection has
// one once it has been used for a while.
type counts struct{ Files, Maps, Rings, Goroutines int }

func (c counts) String() string {
	return fmt.Sprintf("%d descriptors, %d shared mappings, %d rings, %d goroutines", c.Files, c.Maps, c.Rings, c.Goroutines)
}

// count counts this process, after two collections: what the first finds unused, it may be the second that frees.
func count() counts {
	runtime.GC()
	runtime.GC()
	c := counts{Goroutines: runtime.NumGoroutine()}
	if files, err := os.ReadDir("/proc/self/fd"); err == nil {
		c.Files = len(files) - 1 // without the one that reads the directory
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

// back waits until this process has no more than that, and otherwise says what it has.
func back(base counts, limit time.Duration) error {
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

// stacks are those of all goroutines.
func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

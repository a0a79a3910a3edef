package drivertest

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"
)

// settle is how long resources of a test may take to disappear. The wait happens only if some are left.
const settle = 5 * time.Second

// Leaks records the descriptors, shared mappings and goroutines of this process and compares them at the end of the
// test, after all cleanups registered later. New ones that do not disappear within a few seconds fail the test and are
// listed: descriptors with their target, mappings with their line of /proc/self/maps, goroutines with their stack. Call
// it first in a test. It counts the whole process, so neither the test nor a concurrent one may be parallel.
//
// Descriptors and mappings are counted on systems with /proc (Linux), goroutines everywhere. Entries that contain one
// of the ignore strings are not counted. If the runtime has the profile goroutineleak (Go 1.27, or Go 1.26 with
// GOEXPERIMENT=goroutineleakprofile), goroutines from before the test that can never run again fail it too.
func Leaks(tb testing.TB, ignore ...string) {
	tb.Helper()
	before := TakeSnapshot(ignore...)
	tb.Cleanup(func() {
		tb.Helper()
		if left := before.WaitNone(settle); len(left) > 0 {
			tb.Errorf("the test left %d behind:\n%s", len(left), strings.Join(left, "\n"))
		}
	})
}

// Snapshot is the set of resources of a process at one moment.
type Snapshot struct {
	ignore     []string
	files      map[string]bool
	mappings   map[string]int
	goroutines map[string]string
	forever    map[string]string // goroutines that are blocked forever; nil if this Go cannot find them
}

// TakeSnapshot records the descriptors, shared mappings and goroutines of this process. Entries that contain one of the
// ignore strings are excluded, now and in comparisons with the snapshot.
func TakeSnapshot(ignore ...string) *Snapshot {
	startPoller()
	return capture(ignore)
}

// Left returns the resources that the process has now and did not have at the time of the snapshot.
func (s *Snapshot) Left() []string {
	now := capture(s.ignore)
	var left []string
	for _, f := range slices.Sorted(maps.Keys(now.files)) {
		if !s.files[f] {
			left = append(left, "descriptor "+f)
		}
	}
	for _, m := range slices.Sorted(maps.Keys(now.mappings)) {
		if more := now.mappings[m] - s.mappings[m]; more > 0 {
			left = append(left, fmt.Sprintf("mapping %s (%d more)", m, more))
		}
	}
	for id, stack := range now.forever {
		_, existed := s.goroutines[id] // a new goroutine is listed below
		if _, old := s.forever[id]; existed && !old {
			left = append(left, "blocked forever: "+stack)
		}
	}
	for id, stack := range now.goroutines {
		if _, old := s.goroutines[id]; !old {
			left = append(left, stack)
		}
	}
	return left
}

// WaitNone is Left, but waits until limit for resources that are about to disappear, such as an ending goroutine.
func (s *Snapshot) WaitNone(limit time.Duration) []string {
	deadline := time.Now().Add(limit)
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left := s.Left()
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		time.Sleep(pause)
	}
}

// OpenFiles returns the number of open descriptors of this process, or -1 without /proc.
func OpenFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(entries) - 1 // without the one that reads the directory
}

// SharedMappings returns the number of shared mappings of this process, or -1 without /proc.
func SharedMappings() int {
	if _, err := os.Stat("/proc/self/maps"); err != nil {
		return -1
	}
	n := 0
	for _, c := range sharedMappings() {
		n += c
	}
	return n
}

// standIn are the files that the stand-in for libcuda keeps from the first test that loads it to the end of the process: the
// state of the process and the page of its counters. A snapshot may be older than they are.
var standIn = []string{"/memfd:fakecuda-checkpoint", "/fakecuda-"}

func capture(ignore []string) *Snapshot {
	ignore = append(slices.Clip(ignore), standIn...)
	s := &Snapshot{ignore: ignore, files: openFiles(), mappings: sharedMappings(), goroutines: goroutines(), forever: blockedForever()}
	ignored := func(entry string) bool {
		return slices.ContainsFunc(ignore, func(part string) bool { return strings.Contains(entry, part) })
	}
	maps.DeleteFunc(s.files, func(k string, _ bool) bool { return ignored(k) })
	maps.DeleteFunc(s.mappings, func(k string, _ int) bool { return ignored(k) })
	maps.DeleteFunc(s.goroutines, func(_, stack string) bool { return ignored(stack) })
	maps.DeleteFunc(s.forever, func(_, stack string) bool { return ignored(stack) })
	return s
}

// startPoller makes the runtime open its epoll and event descriptors, which it keeps, before they could count as leaks.
func startPoller() {
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
}

func openFiles() map[string]bool {
	files := map[string]bool{}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return files
	}
	for _, e := range entries {
		// The descriptor that read the directory is closed by now, so its link is gone.
		if target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil {
			files[e.Name()+" -> "+target] = true
		}
	}
	return files
}

// sharedMappings counts the mappings whose permissions end in s. Private mappings change with the Go heap, thread
// stacks and loaded libraries. The key excludes the address because the kernel merges and splits neighbours.
func sharedMappings() map[string]int {
	mappings := map[string]int{}
	data, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return mappings
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		// address permissions offset device inode path
		fields := strings.Fields(lines.Text())
		if len(fields) >= 5 && strings.HasSuffix(fields[1], "s") {
			mappings[strings.Join(fields[1:], " ")]++
		}
	}
	return mappings
}

// systemGoroutines are frames of goroutines that the standard library starts once and keeps.
var systemGoroutines = []string{"os/signal.signal_recv", "os/signal.loop", "runtime.ensureSigM", "testing.(*M).startAlarm", "runtime.runFinalizers", "runtime.runCleanups"}

// goroutines maps the numbers of goroutines to their stacks.
func goroutines() map[string]string {
	buf := make([]byte, 1<<16)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	found := map[string]string{}
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		rest, ok := strings.CutPrefix(stack, "goroutine ")
		id, _, split := strings.Cut(rest, " ")
		system := slices.ContainsFunc(systemGoroutines, func(f string) bool { return strings.Contains(stack, f) })
		if ok && split && !system {
			found[id] = stack
		}
	}
	return found
}

// RequireEnv is the variable that lists what the machine of a test run must have, such as "root,processors": a test
// that needs one of these fails instead of being skipped if it is missing.
const RequireEnv = "SHAREDTENSOR_REQUIRE"

// Needs skips a test if ok is false because the machine lacks what; why is the reason. If [RequireEnv] requires what,
// the test fails instead.
func Needs(tb testing.TB, what string, ok bool, why string) {
	tb.Helper()
	switch {
	case ok:
	case slices.Contains(strings.Split(os.Getenv(RequireEnv), ","), what):
		tb.Fatalf("%s=%s promises %s: %s", RequireEnv, os.Getenv(RequireEnv), what, why)
	default:
		tb.Skipf("SKIPPED, NOT TESTED (%s=%s makes this a failure): %s", RequireEnv, what, why)
	}
}

// leakProfile is the runtime's profile of goroutines that are blocked forever: each waits for a channel, a lock or a
// condition that no running goroutine can reach. Go 1.27 has it, and Go 1.26 with GOEXPERIMENT=goroutineleakprofile.
const leakProfile = "goroutineleak"

// blockedForever maps the numbers of goroutines that are blocked forever to their stacks. It is nil if this Go cannot find
// them. It runs a garbage collection.
func blockedForever() map[string]string {
	profile := pprof.Lookup(leakProfile)
	if profile == nil {
		return nil
	}
	var b bytes.Buffer
	if err := profile.WriteTo(&b, 2); err != nil { // all stacks; those of leaked goroutines have a mark
		return nil
	}
	return leaked(b.String())
}

// leaked returns the marked goroutines of a dump.
func leaked(dump string) map[string]string {
	found := map[string]string{}
	for stack := range strings.SplitSeq(dump, "\n\n") {
		rest, ok := strings.CutPrefix(stack, "goroutine ")
		id, state, split := strings.Cut(rest, " ")
		if head, _, _ := strings.Cut(state, "\n"); ok && split && strings.Contains(head, "(leaked)") {
			found[id] = stack
		}
	}
	return found
}

package drivertest

import (
	"os"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// recorder is a testing.TB that records calls. It implements only the methods that Leaks calls.
type recorder struct {
	testing.TB
	cleanups []func()
	failed   bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Cleanup(f func())      { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(string, ...any) { r.failed = true }
func (r *recorder) run() {
	for _, f := range r.cleanups {
		f()
	}
}

func TestLeaksPassesWhereNothingIsLeft(t *testing.T) {
	r := &recorder{TB: t}
	Leaks(r)
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	end := make(chan struct{})
	go func() { <-end }()
	close(end)
	require.NoError(t, f.Close())
	r.run()
	require.False(t, r.failed)
}

func TestSnapshotNamesWhatIsLeft(t *testing.T) {
	if OpenFiles() < 0 {
		t.Skip("descriptors are counted in /proc, which this system has not")
	}
	before := TakeSnapshot()
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	left := before.Left()
	require.Len(t, left, 1)
	require.Contains(t, left[0], os.DevNull)
	require.Empty(t, TakeSnapshot().Left())

	require.NoError(t, f.Close())
	require.Empty(t, before.Left())

	end := make(chan struct{})
	go func() { <-end }()
	left = before.Left()
	require.Len(t, left, 1)
	require.Contains(t, left[0], "TestSnapshotNamesWhatIsLeft")
	close(end)
	require.Empty(t, before.WaitNone(settle))
}

func TestSnapshotIgnores(t *testing.T) {
	if OpenFiles() < 0 {
		t.Skip("descriptors are counted in /proc, which this system has not")
	}
	before := TakeSnapshot(os.DevNull)
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer f.Close()
	require.Empty(t, before.Left())
}

// verdict records how Needs ends a test.
type verdict struct {
	testing.TB
	skipped, failed bool
}

func (v *verdict) Helper()               {}
func (v *verdict) Skipf(string, ...any)  { v.skipped = true }
func (v *verdict) Fatalf(string, ...any) { v.failed = true }

func TestNeeds(t *testing.T) {
	for _, c := range []struct {
		promised        string
		ok              bool
		skipped, failed bool
	}{
		{"", true, false, false},
		{"", false, true, false},
		{"rooted,processors", false, true, false},
		{"processors,root", false, false, true},
		{"root", true, false, false},
	} {
		t.Setenv(RequireEnv, c.promised)
		v := &verdict{TB: t}
		Needs(v, "root", c.ok, "why")
		require.Equal(t, c.skipped, v.skipped, c)
		require.Equal(t, c.failed, v.failed, c)
	}
}

func TestLeaked(t *testing.T) {
	const dump = "goroutine 1 [running]:\nmain.main()\n\ngoroutine 18 [chan receive (leaked), 2 minutes]:\nmain.f()\n\ngoroutine 19 [select]:\nmain.g(\"(leaked)\")\n"
	require.Equal(t, map[string]string{"18": "goroutine 18 [chan receive (leaked), 2 minutes]:\nmain.f()"}, leaked(dump))
}

// The runtime finds a goroutine whose channel has no other reference. One that can still be woken is not reported.
func TestBlockedForever(t *testing.T) {
	Needs(t, "goroutineleak", pprof.Lookup(leakProfile) != nil, "this Go has no goroutineleak profile")
	before := blockedForever()
	reachable := make(chan struct{})
	started := make(chan struct{}, 2)
	go func() { started <- struct{}{}; <-reachable }()
	go func(lost chan struct{}) { started <- struct{}{}; <-lost }(make(chan struct{}))
	<-started
	<-started
	var found map[string]string
	for limit := time.Now().Add(settle); len(found) <= len(before) && time.Now().Before(limit); time.Sleep(time.Millisecond) {
		found = blockedForever()
	}
	require.Len(t, found, len(before)+1)
	close(reachable)
}

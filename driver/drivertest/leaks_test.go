package drivertest

import (
	"os"
	"testing"

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

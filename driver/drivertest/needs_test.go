package drivertest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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

package drivertest

import (
	"os"
	"slices"
	"strings"
	"testing"
)

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

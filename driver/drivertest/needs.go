package drivertest

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// RequireEnv is the variable that lists what the machine of a test run is promised to have, such as "root,processors":
// a test that needs it and does not find it fails instead of being skipped.
const RequireEnv = "SHAREDTENSOR_REQUIRE"

// Needs skips a test where ok is false, since the machine lacks what is called what; why says what for. Where the
// machine is promised to have it, see [RequireEnv], the test fails.
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

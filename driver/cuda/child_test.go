package cuda_test

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
)

const childVariable = "SHAREDTENSOR_TEST_CHILD"

// child runs the calling test again in a separate process with additional environment variables, and returns true. In
// that process it returns false. Tests use it if they lose the context, or need a library with other options.
func child(t *testing.T, name string, env ...string) bool {
	t.Helper()
	if os.Getenv(childVariable) == name {
		return false
	}
	cmd := selfCommand("-test.run="+pattern(t.Name()), "-test.count=1")
	cmd.Env = append(slices.Concat(os.Environ(), env), childVariable+"="+name)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return true
}

// childWith is child with other options for the library.
func childWith(t *testing.T, name string, o cudatest.Options) bool {
	t.Helper()
	if os.Getenv(childVariable) == name {
		return false
	}
	return child(t, name, o.Env(t)...)
}

// selfCommand returns a command that runs this test binary again. SHAREDTENSOR_TEST_EXEC is a prefix of the command
// line, such as an emulator.
func selfCommand(args ...string) *exec.Cmd {
	words := append(strings.Fields(os.Getenv("SHAREDTENSOR_TEST_EXEC")), os.Args[0])
	return exec.Command(words[0], append(words[1:], args...)...)
}

// pattern matches a test and its parents exactly.
func pattern(name string) string {
	var parts []string
	for _, p := range strings.Split(name, "/") {
		parts = append(parts, "^"+p+"$")
	}
	return strings.Join(parts, "/")
}

// collect runs the garbage collector until done returns true, or fails the test.
func collect(t *testing.T, done func() bool) {
	t.Helper()
	for range 1000 {
		if done() {
			return
		}
		runtime.GC()
		runtime.Gosched()
	}
	t.Fatal("the garbage collector did not clean up")
}

//go:build linux && (amd64 || arm64) && !nocuda

package cu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
)

// libraries is the directory of the test libraries. It is empty if there is no C compiler.
var libraries string

// TestMain compiles the test libraries. CU_TEST_LIBRARIES is a directory of compiled libraries, for qemu, where there
// is no compiler. See testdata/qemu.sh.
func TestMain(m *testing.M) {
	code, err := func() (int, error) {
		if libraries = os.Getenv("CU_TEST_LIBRARIES"); libraries != "" {
			return m.Run(), nil
		}
		cc, err := exec.LookPath("cc")
		if err != nil {
			fmt.Println("SKIP: no C compiler: the tests that call C are skipped")
			return m.Run(), nil
		}
		dir, err := os.MkdirTemp("", "cu")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir)
		for _, name := range []string{"tiny", "recorder"} {
			out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", filepath.Join(dir, name+".so"),
				filepath.Join("testdata", name+".c")).CombinedOutput()
			if err != nil {
				return 1, fmt.Errorf("cc %s.c: %w\n%s", name, err, out)
			}
		}
		libraries = dir
		return m.Run(), nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// use makes one of the test libraries the driver for this test, and unloads it at the end.
func use(t testing.TB, name string) {
	t.Helper()
	if libraries == "" {
		t.Skip("no C compiler")
	}
	forget()
	t.Cleanup(forget)
	require.NoError(t, Load(filepath.Join(libraries, name+".so")))
}

// forget resets the package to the state before loading. Open libraries stay open.
func forget() {
	library.mu.Lock()
	defer library.mu.Unlock()
	library.handle, library.path, library.err = 0, "", nil
	library.perThread, library.used = false, false
	library.absent = [functionCount]error{}
	for i := range addresses {
		addresses[i].Store(0)
	}
}

// symbol returns the address of a variable or function of the library in use.
func symbol(t testing.TB, name string) uintptr {
	t.Helper()
	library.mu.Lock()
	defer library.mu.Unlock()
	p, err := purego.Dlsym(library.handle, name)
	require.NoError(t, err)
	return p
}

// Package pytest finds a Python interpreter for tests of compatibility with other implementations.
package pytest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// Env is the environment variable with the path of a Python that has grpcio, grpcio-tools and torch.
const Env = "PYTHON"

// Python returns the path of a Python that has the modules. It skips the test if there is none, see [drivertest.Needs].
func Python(tb testing.TB, modules ...string) string {
	tb.Helper()
	path := os.Getenv(Env)
	if path == "" {
		path = "python3"
	}
	for _, module := range modules {
		find := "import importlib.util as u, sys; sys.exit(u.find_spec('" + module + "') is None)"
		err := exec.Command(path, "-c", find).Run()
		drivertest.Needs(tb, module, err == nil, "a Python with "+module+", which the variable "+Env+" names")
	}
	return path
}

// Stubs compiles .proto files for Python into a new folder and returns it for use in PYTHONPATH. The modules are named
// after the files.
func Stubs(tb testing.TB, python string, protos ...string) string {
	tb.Helper()
	dir := tb.TempDir()
	for _, proto := range protos {
		cmd := exec.Command(python, "-m", "grpc_tools.protoc", "-I", filepath.Dir(proto), "--python_out", dir, "--grpc_python_out", dir, proto)
		out, err := cmd.CombinedOutput()
		require.NoError(tb, err, "%s", out)
	}
	return dir
}

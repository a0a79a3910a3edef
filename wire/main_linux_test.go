package wire

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// roles are the functions of the test binary when it runs as another process. Each serves one connection and ends.
var roles = map[string]func(*net.UnixConn) error{}

const roleVariable = "WIRE_TEST_ROLE"

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := runRole(role, os.Args[len(os.Args)-1]); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
}

func runRole(role, socket string) error {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	return roles[role](c)
}

// startRole runs this binary in the given role and returns the connection to it. It listens on a path as a server does,
// so only this side's socket has a name.
func startRole(t testing.TB, role string) (*net.UnixConn, *exec.Cmd) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	cmd := exec.Command("/proc/self/exe", path)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	c, err := l.AcceptUnix()
	require.NoError(t, err)
	t.Cleanup(func() {
		c.Close()
		cmd.Wait()
	})
	return c, cmd
}

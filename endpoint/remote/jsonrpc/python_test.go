package jsonrpc_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pytest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// TestPythonClient runs what the example programs of shared-tensor 0.1 did, a server with functions and a client that
// calls them, submits tasks and asks about them, with a client in another language and the owner, the gateway and the
// client in processes of their own.
func TestPythonClient(t *testing.T) {
	python := pytest.Python(t)
	owner := remotetest.StartOwner(t, "--model", "m=65536")
	gw := remotetest.StartGateway(t, owner.Socket)
	attached(t, gw)
	out, err := exec.Command(python, "testdata/client.py", gw.HTTP(), "m").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "ok\n", string(out))
}

package jsonrpc_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pytest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// The examples of shared-tensor 0.1 work with a Python client: a server registers functions, and a client calls them,
// submits tasks and queries their state. Owner, gateway and client are separate processes.
func TestPythonClient(t *testing.T) {
	python := pytest.Python(t)
	owner := remotetest.StartOwner(t, "--model", "m=65536")
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	out, err := exec.Command(python, "testdata/client.py", gw.HTTP(), "m").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "ok\n", string(out))
}

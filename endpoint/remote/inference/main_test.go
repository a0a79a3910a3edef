package inference_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/inference"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pytest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/module"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(processEnv); what != "" {
		if err := processMain(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	remotetest.Main(m, func() []gateway.Component { return []gateway.Component{inference.New()} })
}

// NVIDIA's unmodified Python client works with a gateway and an owner in separate processes.
func TestTritonClient(t *testing.T) {
	python := pytest.Python(t, "tritonclient", "ml_dtypes")
	owner := remotetest.StartOwner(t, "--model", "mixed=4096")
	publishBeside(t, owner.Socket, "mixed")
	gw := serve(t, owner, "--allow-client-shm")
	for kind, address := range map[string]string{"grpc": gw.Addresses.GRPC, "http": gw.Addresses.HTTP} {
		t.Run(kind, func(t *testing.T) {
			out, err := exec.Command(python, "testdata/triton_client.py", kind, address).CombinedOutput()
			require.NoError(t, err, "%s", out)
			t.Logf("%s", out)
		})
	}
}

// A client generated from KServe's published stubs works with a gateway and an owner in separate processes.
func TestKServeClient(t *testing.T) {
	python := pytest.Python(t, "kserve", "grpc")
	owner := remotetest.StartOwner(t)
	gw := serve(t, owner)
	out, err := exec.Command(python, "testdata/kserve_client.py", gw.Addresses.GRPC).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// publishBeside publishes the next version of a model and keeps the previous one.
func publishBeside(t *testing.T, socket, name string) {
	t.Helper()
	dev := remotetest.OpenHost(t)
	client := remotetest.Dial(t, socket, dev)
	before, err := client.Acquire(t.Context(), name, endpoint.AcquireOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = before.Close() })
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 2, Bytes: 4096, Seed: 2})
	require.NoError(t, err)
	defer sd.Close()
	version, err := client.Publish(t.Context(), name, sd, endpoint.PublishOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2, version)
}

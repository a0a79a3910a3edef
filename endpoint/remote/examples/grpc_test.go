// Package examples_test runs the example programs as a new user would, each in a separate process.
package examples_test

import (
	"bufio"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pytest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// build builds an example program and returns its path.
func build(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), strings.ReplaceAll(name, "/", "-"))
	out, err := exec.Command("go", "build", "-o", path, "./"+name).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// serve starts a server and returns it with the address that it logs.
func serve(t *testing.T, path, address string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(path, address)
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	lines := bufio.NewScanner(log)
	require.True(t, lines.Scan())
	_, at, ok := strings.Cut(lines.Text(), "serving ")
	require.True(t, ok, lines.Text())
	go func() {
		for lines.Scan() { // until the server exits
		}
	}()
	return cmd, at
}

// Go and Python clients get results from the server, which stops gracefully.
func TestCompute(t *testing.T) {
	server, address := serve(t, build(t, "compute/server"), "127.0.0.1:0")
	out, err := exec.Command(build(t, "compute/client"), address).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "connected to two-layers 1.0.0 on cpu, 1179648 parameters")
	require.Equal(t, 10, strings.Count(string(out), "output [1, 10, 768]"))
	require.Contains(t, string(out), "10 requests")
	require.NoError(t, server.Process.Signal(syscall.SIGTERM))
	require.NoError(t, server.Wait())
}

// A client notices at once that its server was killed, and continues with the next server.
func TestComputeServerIsKilled(t *testing.T) {
	path := build(t, "compute/server")
	server, address := serve(t, path, remotetest.FreeAddress(t))
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	in, err := tensor.Zeros(dev, tensor.Float32, tensor.Shape{4, 768})
	require.NoError(t, err)
	defer in.Close()
	client, err := compute.Dial(t.Context(), address, compute.ClientOptions{Retry: compute.Retry{Attempts: 1}})
	require.NoError(t, err)
	defer client.Close()
	out, err := client.Compute(t.Context(), in)
	require.NoError(t, err)
	out.Close()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.NoError(t, err)

	require.NoError(t, server.Process.Kill())
	server.Wait()
	for err == nil {
		_, err = watch.Recv()
	}
	require.Equal(t, codes.Unavailable, status.Code(err))
	_, err = client.Compute(t.Context(), in)
	require.Equal(t, codes.Unavailable, status.Code(err))

	serve(t, path, address)
	patient, err := compute.Dial(t.Context(), address, compute.ClientOptions{Retry: compute.Retry{Attempts: 20, Initial: 100 * time.Millisecond}})
	require.NoError(t, err)
	defer patient.Close()
	out, err = patient.Compute(t.Context(), in)
	require.NoError(t, err)
	out.Close()
}

func TestStream(t *testing.T) {
	server, address := serve(t, build(t, "stream/server"), "127.0.0.1:0")
	client := build(t, "stream/client")
	for _, version := range []string{"version 1", "version 2"} {
		out, err := exec.Command(client, address, "16").CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "sent "+version)
		require.Contains(t, string(out), "received "+version)
		require.Contains(t, string(out), "tensor 2 doubled: tensor([4., 1.])")
	}
	require.NoError(t, server.Process.Signal(syscall.SIGTERM))
	require.NoError(t, server.Wait())
}

// If the server is killed during a Put, the client repeats the Put at the next server, and the set arrives once and
// complete.
func TestStreamServerIsKilled(t *testing.T) {
	path, client := build(t, "stream/server"), build(t, "stream/client")
	server, address := serve(t, path, remotetest.FreeAddress(t))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, client, address, "256")
	printed, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(printed)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "1") { // until more than a tenth is sent
	}
	require.NoError(t, server.Process.Kill())
	server.Wait()
	serve(t, path, address)
	var out strings.Builder
	for lines.Scan() {
		out.WriteString(lines.Text() + "\n")
	}
	require.NoError(t, cmd.Wait(), "%s", &out)
	require.Regexp(t, `sent version 1 in \S+, ([2-9]|\d\d) calls`, out.String())
	require.Contains(t, out.String(), "received version 1")
	require.Contains(t, out.String(), "equal")
}

// A Python client of kpu.torch.Service works with the example server.
func TestStreamInPython(t *testing.T) {
	python := pytest.Python(t, "grpc_tools", "torch")
	_, address := serve(t, build(t, "stream/server"), "127.0.0.1:0")
	script := `
import sys, io, grpc, torch, torch_pb2 as pb, torch_pb2_grpc
stub = torch_pb2_grpc.ServiceStub(grpc.insecure_channel(sys.argv[1]))
chunks = list(stub.SendTensors(pb.TensorRequest(count=2, parameters={"shape": "500, 700"})))
for name in ("random_0", "random_1"):
    data = b"".join(c.data for c in chunks if c.tensor_id == name)
    print(name, list(torch.load(io.BytesIO(data)).shape))
`
	cmd := exec.Command(python, "-c", script, address)
	cmd.Env = append(cmd.Environ(), "PYTHONPATH="+pytest.Stubs(t, python, "../stream/torchpb/torch.proto"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "random_1 [500, 700]")
}

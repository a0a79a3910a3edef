package inference_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// The tests in this file are clients with GPU memory, which the stand-in of package cudatest provides. As with the
// driver, another process opens its legacy handles. The CUDA utilities of NVIDIA's Python client need NVIDIA's runtime
// library, for which there is no stand-in.

// cudaRegionBytes is the size of the clients' allocations.
const cudaRegionBytes = 1 << 20

// cudaGateway starts a gateway with a GPU and opens the same GPU in this process.
func cudaGateway(t *testing.T) (client pb.GRPCInferenceServiceClient, httpAt string, dev *cuda.Device, gateway *exec.Cmd) {
	t.Helper()
	fake := cudatest.Start(t, cudatest.Options{})
	fake.Leaks(t)
	grpcAt, httpAt, gateway := startProcess(t, "cuda")
	conn, err := grpc.NewClient(grpcAt, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	dev, err = cuda.Open(0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return pb.NewGRPCInferenceServiceClient(conn), httpAt, dev, gateway
}

// clientCUDA allocates memory as a CUDA client does, and returns it with its handle.
func clientCUDA(t *testing.T, dev *cuda.Device) (m *cuda.Memory, handle []byte) {
	t.Helper()
	m, err := dev.AllocLegacy(cudaRegionBytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	h, offset, err := dev.IPCHandle(m.Pointer())
	require.NoError(t, err)
	require.Zero(t, offset)
	return m, h[:]
}

// imports counts the gateway's mappings of other processes' device memory.
func imports(t *testing.T, gateway *exec.Cmd) (n int) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", gateway.Process.Pid))
	require.NoError(t, err)
	return strings.Count(string(maps), "memfd:fakecuda:")
}

// requireImports waits until the gateway has this number of imports.
func requireImports(t *testing.T, gateway *exec.Cmd, want int) {
	t.Helper()
	remotetest.Eventually(t, func() error {
		if n := imports(t, gateway); n != want {
			return fmt.Errorf("%d mappings of device memory in the gateway, of %d", n, want)
		}
		return nil
	})
}

// inCUDA returns a request for identity of n elements from one region to another.
func inCUDA(n int, in, out string, inAt, outAt int64) *pb.ModelInferRequest {
	r := identity(n)
	r.RawInputContents, r.Inputs[0].Parameters = nil, inRegion(in, inAt, int64(4*n))
	r.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "output", Parameters: inRegion(out, outAt, int64(4*n))}}
	return r
}

// Functions read their arguments from a client's device memory and write results to it, over both transports. Invalid
// regions are refused.
func TestCUDARegions(t *testing.T) {
	client, httpAt, dev, gateway := cudaGateway(t)
	in, inHandle := clientCUDA(t, dev)
	out, outHandle := clientCUDA(t, dev)
	before := imports(t, gateway)
	register := func(name string, handle []byte, device int64, size uint64) error {
		_, err := client.CudaSharedMemoryRegister(t.Context(),
			&pb.CudaSharedMemoryRegisterRequest{Name: name, RawHandle: handle, DeviceId: device, ByteSize: size})
		return err
	}
	require.NoError(t, register("in", inHandle, 0, cudaRegionBytes))
	require.NoError(t, register("out", outHandle, 0, cudaRegionBytes))
	requireImports(t, gateway, before+2)

	list, err := client.CudaSharedMemoryStatus(t.Context(), &pb.CudaSharedMemoryStatusRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetRegions(), 2)
	require.EqualValues(t, cudaRegionBytes, list.GetRegions()["in"].GetByteSize())

	const n, inAt, outAt = 100_000, 1024, 4096
	_, err = in.WriteAt(elements(n), inAt)
	require.NoError(t, err)
	answer, err := client.ModelInfer(t.Context(), inCUDA(n, "in", "out", inAt, outAt))
	require.NoError(t, err)
	require.EqualValues(t, 4*n, answer.GetOutputs()[0].GetParameters()["shared_memory_byte_size"].GetInt64Param())
	got := make([]byte, 4*n)
	_, err = out.ReadAt(got, outAt)
	require.NoError(t, err)
	require.True(t, bytes.Equal(elements(n), got))

	t.Run("refusals", func(t *testing.T) {
		forged := bytes.Clone(inHandle)
		forged[20] ^= 1
		for name, err := range map[string]error{
			"a size that the allocation does not have": register("r", outHandle, 0, cudaRegionBytes+(4<<20)),
			"a size of nothing":                        register("r", inHandle, 0, 0),
			"a size beyond all memory":                 register("r", inHandle, 0, 1<<63),
			"a forged handle":                          register("r", forged, 0, cudaRegionBytes),
			"no handle":                                register("r", make([]byte, 64), 0, cudaRegionBytes),
			"a short handle":                           register("r", inHandle[:63], 0, cudaRegionBytes),
			"another device":                           register("r", inHandle, 7, cudaRegionBytes),
		} {
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", name, err)
		}
		require.Equal(t, codes.AlreadyExists, status.Code(register("in", inHandle, 0, cudaRegionBytes)))
		for name, r := range map[string]*pb.ModelInferRequest{
			"input behind the end":  inCUDA(n, "in", "out", cudaRegionBytes-4*n+1, 0),
			"output behind the end": inCUDA(n, "in", "out", 0, cudaRegionBytes-4*n+1),
			"a negative offset":     inCUDA(n, "in", "out", -1, 0),
		} {
			_, err := client.ModelInfer(t.Context(), r)
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", name, err)
		}
		requireImports(t, gateway, before+2)
	})
	t.Run("rest", func(t *testing.T) {
		post := func(path string, body any) (int, string) {
			raw, err := json.Marshal(body)
			require.NoError(t, err)
			answer, err := http.Post("http://"+httpAt+path, "application/json", bytes.NewReader(raw))
			require.NoError(t, err)
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			require.NoError(t, err)
			return answer.StatusCode, string(text)
		}
		handle := map[string]any{"b64": base64.StdEncoding.EncodeToString(outHandle)}
		code, text := post("/v2/cudasharedmemory/region/again/register", map[string]any{"raw_handle": handle, "device_id": 0, "byte_size": cudaRegionBytes})
		require.Equal(t, http.StatusOK, code, text)
		at := func(region string) map[string]any {
			return map[string]any{"shared_memory_region": region, "shared_memory_byte_size": 64, "shared_memory_offset": 2048}
		}
		_, err = in.WriteAt(elements(16), 2048)
		require.NoError(t, err)
		code, text = post("/v2/models/identity/infer", map[string]any{
			"inputs":  []any{map[string]any{"name": "x", "datatype": "FP32", "shape": []int{16}, "parameters": at("in")}},
			"outputs": []any{map[string]any{"name": "output", "parameters": at("again")}},
		})
		require.Equal(t, http.StatusOK, code, text)
		_, err = out.ReadAt(got[:64], 2048)
		require.NoError(t, err)
		require.Equal(t, elements(16), got[:64])
		code, text = post("/v2/cudasharedmemory/region/again/unregister", struct{}{})
		require.Equal(t, http.StatusOK, code, text)
	})
	_, err = client.CudaSharedMemoryUnregister(t.Context(), &pb.CudaSharedMemoryUnregisterRequest{})
	require.NoError(t, err)
	requireImports(t, gateway, before)
	_, err = client.ModelInfer(t.Context(), inCUDA(n, "in", "out", 0, 0))
	require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
}

// If a region is unregistered while requests use it, each request is answered as if it had come before or after that.
func TestCUDARegionUnregisteredInUse(t *testing.T) {
	client, _, dev, gateway := cudaGateway(t)
	in, inHandle := clientCUDA(t, dev)
	_, outHandle := clientCUDA(t, dev)
	const n = 50_000
	_, err := in.WriteAt(elements(n), 0)
	require.NoError(t, err)
	before := imports(t, gateway)
	done := make(chan struct{})
	var group sync.WaitGroup
	var mu sync.Mutex
	outcomes := map[codes.Code]int{}
	for range 4 {
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				_, err := client.ModelInfer(t.Context(), inCUDA(n, "in", "out", 0, 0))
				mu.Lock()
				outcomes[status.Code(err)]++
				mu.Unlock()
			}
		})
	}
	fine := func() int {
		mu.Lock()
		defer mu.Unlock()
		return outcomes[codes.OK]
	}
	for range 20 {
		for name, handle := range map[string][]byte{"in": inHandle, "out": outHandle} {
			_, err := client.CudaSharedMemoryRegister(t.Context(), &pb.CudaSharedMemoryRegisterRequest{Name: name, RawHandle: handle, ByteSize: cudaRegionBytes})
			require.NoError(t, err)
		}
		was := fine()
		remotetest.Eventually(t, func() error {
			if fine() == was {
				return errors.New("no request was answered")
			}
			return nil
		})
		_, err := client.CudaSharedMemoryUnregister(t.Context(), &pb.CudaSharedMemoryUnregisterRequest{})
		require.NoError(t, err)
	}
	close(done)
	group.Wait()
	for code := range outcomes {
		require.Contains(t, []codes.Code{codes.OK, codes.NotFound}, code)
	}
	requireImports(t, gateway, before)
}

// If a client with registered memory is killed, the gateway continues and does not open the handle again.
func TestCUDAClientKilled(t *testing.T) {
	client, _, dev, gateway := cudaGateway(t)
	_, outHandle := clientCUDA(t, dev)
	before := imports(t, gateway)
	line, theirs := startLine(t, "cuda client")
	handle, err := hex.DecodeString(line)
	require.NoError(t, err)
	register := func(name string, handle []byte) error {
		_, err := client.CudaSharedMemoryRegister(t.Context(), &pb.CudaSharedMemoryRegisterRequest{Name: name, RawHandle: handle, ByteSize: cudaRegionBytes})
		return err
	}
	require.NoError(t, register("in", handle))
	require.NoError(t, register("out", outHandle))
	_, err = client.ModelInfer(t.Context(), inCUDA(16, "in", "out", 0, 0))
	require.NoError(t, err)
	require.NoError(t, theirs.Process.Kill())
	_, _ = theirs.Process.Wait()
	// The driver decides whether memory of a dead process can be read. Either outcome is an answer.
	_, _ = client.ModelInfer(t.Context(), inCUDA(16, "in", "out", 0, 0))
	_, err = client.CudaSharedMemoryUnregister(t.Context(), &pb.CudaSharedMemoryUnregisterRequest{Name: "in"})
	require.NoError(t, err)
	err = register("in", handle)
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	require.NoError(t, register("in", outHandle), "the name is free again")
	_, err = client.ModelInfer(t.Context(), inCUDA(16, "in", "out", 64, 0))
	require.NoError(t, err)
	_, err = client.CudaSharedMemoryUnregister(t.Context(), &pb.CudaSharedMemoryUnregisterRequest{})
	require.NoError(t, err)
	requireImports(t, gateway, before)
}

// cudaClientMain runs a client that will be killed. It prints the handle of its memory.
func cudaClientMain() error {
	dev, err := cuda.Open(0)
	if err != nil {
		return err
	}
	m, err := dev.AllocLegacy(cudaRegionBytes)
	if err != nil {
		return err
	}
	h, _, err := dev.IPCHandle(m.Pointer())
	if err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(h[:]))
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return nil
}

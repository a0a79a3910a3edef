package inference_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// TestCUDARegionWithoutADevice registers memory of a GPU at a gateway that has none: the client is told what to use
// instead, in words of a request and not of a server that broke, and nothing is registered.
func TestCUDARegionWithoutADevice(t *testing.T) {
	owner := remotetest.StartOwner(t)
	client := dial(t, serve(t, owner, "--allow-client-shm"))
	register := func(handle []byte) error {
		_, err := client.CudaSharedMemoryRegister(t.Context(), &pb.CudaSharedMemoryRegisterRequest{Name: "r", RawHandle: handle, ByteSize: 16})
		return err
	}
	err := register(make([]byte, 64))
	require.Equal(t, codes.Unimplemented, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "no CUDA device; use system shared memory")
	err = register(make([]byte, 63))
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "64 bytes")
	list, err := client.CudaSharedMemoryStatus(t.Context(), &pb.CudaSharedMemoryStatusRequest{})
	require.NoError(t, err)
	require.Empty(t, list.GetRegions())

	r := identity(4)
	r.RawInputContents, r.Inputs[0].Parameters = nil, inRegion("r", 0, 16)
	_, err = client.ModelInfer(t.Context(), r)
	require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
}

// TestCUDARegionIsOff until an operator allows it, whatever devices there are.
func TestCUDARegionIsOff(t *testing.T) {
	owner := remotetest.StartOwner(t)
	client := dial(t, serve(t, owner))
	_, err := client.CudaSharedMemoryRegister(t.Context(), &pb.CudaSharedMemoryRegisterRequest{Name: "r", RawHandle: make([]byte, 64), ByteSize: 16})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	require.ErrorContains(t, err, "--allow-client-shm")
}

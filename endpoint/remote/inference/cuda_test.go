package inference_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// Registering GPU memory at a gateway without a GPU fails as a client error that names the alternative, and registers
// nothing.
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

// GPU memory cannot be registered until an operator allows it, even if there are devices.
func TestCUDARegionIsOff(t *testing.T) {
	owner := remotetest.StartOwner(t)
	client := dial(t, serve(t, owner))
	_, err := client.CudaSharedMemoryRegister(t.Context(), &pb.CudaSharedMemoryRegisterRequest{Name: "r", RawHandle: make([]byte, 64), ByteSize: 16})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	require.ErrorContains(t, err, "--allow-client-shm")
}

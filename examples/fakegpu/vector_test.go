package fakegpu

import (
	"errors"
	"slices"
	"testing"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
)

// device returns a device of the stand-in. The test fails if it leaves CUDA objects.
func device(t *testing.T) (*cudatest.Fake, *cuda.Device) {
	t.Helper()
	fake := cudatest.Start(t)
	fake.Leaks(t)
	dev, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return fake, dev
}

func TestAdd(t *testing.T) {
	_, dev := device(t)
	adder, err := NewAdder(dev)
	if err != nil {
		t.Fatal(err)
	}
	defer adder.Close()
	sum, err := adder.Add([]float32{1, 2, 3}, []float32{10, 20, 30})
	if err != nil || !slices.Equal(sum, []float32{11, 22, 33}) {
		t.Fatal(sum, err)
	}
	if _, err := adder.Add([]float32{1}, nil); err == nil {
		t.Fatal("vectors of different lengths")
	}
}

// Calls of the driver fail once. The adder reports that, and releases what it had made.
func TestAddReportsFailures(t *testing.T) {
	fake, dev := device(t)
	adder, err := NewAdder(dev)
	if err != nil {
		t.Fatal(err)
	}
	defer adder.Close()
	for _, function := range []string{"cuMemAlloc", "cuMemcpyHtoD", "cuLaunchKernel", "cuMemcpyDtoH"} {
		fake.FailFunction(function, 1, cu.ERROR_OUT_OF_MEMORY)
		if _, err := adder.Add([]float32{1}, []float32{2}); !errors.Is(err, driver.ErrOutOfMemory) {
			t.Fatalf("%s: %v", function, err)
		}
	}
}

package cuda_test

import (
	"fmt"
	"log"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
)

// This lists the devices of the host without opening them.
func ExampleDevices() {
	devices, err := cuda.Devices()
	if err != nil {
		log.Fatal(err) // without a driver, errors.Is(err, errors.ErrUnsupported)
	}
	for _, d := range devices {
		fmt.Println(d, d.Name, d.UUID, d.TotalBytes>>30, "GiB")
	}
}

// This runs the kernel y = a*x + y in a stream. Error handling is omitted.
func ExampleFunction_Launch() {
	dev, _ := cuda.Open(0)
	defer dev.Close()
	const n = 1 << 20
	x, _ := dev.AllocMemory(4 * n)
	defer x.Close()
	y, _ := dev.AllocMemory(4 * n)
	defer y.Close()
	stream, _ := dev.NewStream(cuda.StreamOptions{})
	defer stream.Close()

	module, _ := dev.LoadModule([]byte(kernelsPTX))
	defer module.Close()
	saxpy, _ := module.Function("saxpy")
	threads, _, _ := saxpy.SuggestBlock(0, 0)
	cfg := cuda.LaunchConfig{Block: cuda.Dim3{X: uint32(threads)}, Grid: cuda.Dim3{X: uint32((n + threads - 1) / threads)}, Stream: stream}
	_ = saxpy.Launch(cfg, float32(2), x, y, n)
	if err := stream.Synchronize(); err != nil {
		log.Fatal(err)
	}
}

// Command gpuowner serves a function on a GPU for the tests of the Python client: argument and result are memory of the
// device.
//
//	gpuowner SOCKET
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

type doubleArgs struct {
	X *tensor.Tensor `json:"x"`
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: gpuowner SOCKET")
	}
	if err := own(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func own(socket string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dev, err := cuda.Open(0)
	if err != nil {
		return err
	}
	defer dev.Close()
	// double returns a new tensor on the GPU with each element of x times two. The processor computes it; only the
	// memory matters here.
	double := func(_ context.Context, in doubleArgs) (*tensor.Tensor, error) {
		if in.X.Device() != driver.Device(dev) {
			return nil, fmt.Errorf("%w: x has to be on the GPU", driver.ErrInvalid)
		}
		values, err := tensor.Float32s(in.X)
		if err != nil {
			return nil, err
		}
		for i := range values {
			values[i] *= 2
		}
		return tensor.FromSlice(dev, in.X.Shape(), values)
	}
	registry := endpoint.NewRegistry()
	if err := endpoint.Register(registry, "double", double, endpoint.NoCache()); err != nil {
		return err
	}
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}, Registry: registry})
	if err != nil {
		return err
	}
	defer server.Close()
	go func() { _ = server.Serve(context.Background()) }()
	<-ctx.Done()
	return nil
}

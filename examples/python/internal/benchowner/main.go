// Command benchowner serves the functions that benchmarks call: one reads one element of a tensor, the other has no
// tensor. They measure the call itself.
//
//	benchowner SOCKET
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

type firstArgs struct {
	X *tensor.Tensor `json:"x"`
}

// first returns the first element of a tensor.
func first(_ context.Context, in firstArgs) (float32, error) {
	if in.X == nil {
		return 0, fmt.Errorf("%w: x is missing", driver.ErrInvalid)
	}
	values, err := tensor.Data[float32](in.X)
	if err != nil || len(values) == 0 {
		return 0, err
	}
	return values[0], nil
}

type plainArgs struct {
	Name  string  `json:"name"`
	Scale float64 `json:"scale"`
	Steps []int   `json:"steps"`
}

type plainResult struct {
	Value float64 `json:"value"`
}

// plain returns a number. It has no tensors.
func plain(_ context.Context, in plainArgs) (plainResult, error) {
	return plainResult{Value: in.Scale}, nil
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: benchowner SOCKET")
	}
	if err := own(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func own(socket string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer dev.Close()
	registry := endpoint.NewRegistry()
	if err := endpoint.Register(registry, "first", first); err != nil {
		return err
	}
	again := func(_ context.Context, in firstArgs) (*tensor.Tensor, error) { return in.X.Copy(dev) }
	if err := errors.Join(endpoint.Register(registry, "plain", plain), endpoint.Register(registry, "copy", again)); err != nil {
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

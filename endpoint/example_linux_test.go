package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// exampleDevice returns the memory of this host and a socket path. Programs usually use the default socket.
func exampleDevice() (driver.Device, string) {
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "st")
	if err != nil {
		log.Fatal(err)
	}
	return dev, filepath.Join(dir, "example.sock")
}

// A function of the owner takes a tensor of its caller and returns a new one, without a copy. Owner and caller are
// usually two processes.
func Example() {
	ctx := context.Background()
	dev, socket := exampleDevice()
	defer dev.Close()
	defer os.RemoveAll(filepath.Dir(socket))

	type scaleArgs struct {
		X  *tensor.Tensor `json:"x"`
		By float32        `json:"by"`
	}
	functions := endpoint.NewRegistry()
	err := endpoint.Register(functions, "scale", func(_ context.Context, in scaleArgs) (*tensor.Tensor, error) {
		values, err := tensor.Float32s(in.X)
		if err != nil {
			return nil, err
		}
		for i := range values {
			values[i] *= in.By
		}
		return tensor.FromSlice(dev, in.X.Shape(), values) // the endpoint closes it
	})
	if err != nil {
		log.Fatal(err)
	}
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}, Registry: functions})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	go server.Serve(context.Background())

	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	x, err := tensor.FromSlice(dev, tensor.Shape{3}, []float32{1, 2, 3})
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	y, err := endpoint.Call[*tensor.Tensor](ctx, client, "scale", scaleArgs{X: x, By: 10})
	if err != nil {
		log.Fatal(err)
	}
	defer y.Close()
	fmt.Println(y)
	_, err = endpoint.Call[*tensor.Tensor](ctx, client, "scale", map[string]any{"x": x, "times": 10})
	fmt.Println(err)
	// Output:
	// tensor([10., 20., 30.])
	// call "scale": owner: endpoint "scale": argument: there is no field "times"; expected a map with the fields x, by
}

// A model is built once in the background for all callers, and lives while a client has a reference to it.
func ExampleManaged() {
	ctx := context.Background()
	dev, socket := exampleDevice()
	defer dev.Close()
	defer os.RemoveAll(filepath.Dir(socket))

	type buildArgs struct {
		Size int64 `json:"size"`
	}
	functions := endpoint.NewRegistry()
	build := func(ctx context.Context, in buildArgs) (*tensor.Tensor, error) {
		fmt.Println("building")
		task.Report(ctx, 1, 1, "allocated")
		return tensor.Zeros(dev, tensor.Float32, tensor.Shape{in.Size})
	}
	if err := endpoint.Register(functions, "build", build, endpoint.AsTask(), endpoint.Managed(), endpoint.CacheKey("model:{size}")); err != nil {
		log.Fatal(err)
	}
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}, Registry: functions})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	go server.Serve(context.Background())
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	running, err := client.Submit(ctx, "build", buildArgs{Size: 2}) // returns at once
	if err != nil {
		log.Fatal(err)
	}
	done, err := running.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(done.State, done.Message)
	first, err := endpoint.ResultManaged[*tensor.Tensor](ctx, running)
	if err != nil {
		log.Fatal(err)
	}
	second, err := endpoint.CallManaged[*tensor.Tensor](ctx, client, "build", buildArgs{Size: 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first.ID() == second.ID(), second.Value())
	if err := errors.Join(first.Close(), second.Close()); err != nil { // the owner frees the model with the last reference
		log.Fatal(err)
	}
	// Output:
	// building
	// completed allocated
	// true tensor([0., 0.])
}

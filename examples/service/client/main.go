// Command client makes an owner build a model, transform a tensor and compute the norm of a matrix. No byte of a tensor
// is copied between the two processes.
//
//	go run ./examples/service/client SOCKET
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/examples/service"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: client SOCKET")
	}
	if err := use(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func use(socket string) error {
	ctx := context.Background()
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer dev.Close()
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	if err != nil {
		return err
	}
	defer client.Close()
	model, err := build(ctx, client)
	if err != nil {
		return err
	}
	defer model.Close()
	return errors.Join(transform(ctx, client, dev), estimate(ctx, client, model.Value()))
}

// build starts the task, follows it, and fetches its result with a reference to it.
func build(ctx context.Context, client *endpoint.Client) (*endpoint.Ref[*module.StateDict], error) {
	task, err := client.Submit(ctx, service.BuildModel, service.BuildArgs{HiddenSize: 128, Layers: 3, PaceMS: 20})
	if err != nil {
		return nil, err
	}
	for t, err := range task.Events(ctx) {
		if err != nil {
			return nil, err
		}
		fmt.Println("task", t.State, t.Message)
	}
	model, err := endpoint.ResultManaged[*module.StateDict](ctx, task)
	if err != nil {
		return nil, err
	}
	fmt.Printf("model with %d tensors, %d bytes\n", model.Value().Len(), model.Value().Bytes())
	return model, nil
}

// transform calls an endpoint like a local function.
func transform(ctx context.Context, client *endpoint.Client, dev driver.Device) error {
	call := endpoint.Stub[service.TransformArgs, *tensor.Tensor](client, service.Transform)
	x, err := tensor.FromSlice(dev, tensor.Shape{3}, []float32{1, 2, 3})
	if err != nil {
		return err
	}
	defer x.Close()
	y, err := call(ctx, service.TransformArgs{X: x, Scale: 10, Shift: 1})
	if err != nil {
		return err
	}
	defer y.Close()
	fmt.Println("transform", y)
	return nil
}

// estimate passes a tensor of the owner back to it, and reads a stream until the estimate is good enough.
func estimate(ctx context.Context, client *endpoint.Client, model *module.StateDict) error {
	weight, _ := model.Get("layers.0.weight")
	last := 0.0
	for e, err := range endpoint.Stream[service.Estimate](ctx, client, service.SpectralNorm, service.NormArgs{A: weight, Steps: 1_000_000}) {
		if err != nil {
			return err
		}
		if e.Step == 50 {
			fmt.Printf("spectral norm %.2f after %d steps, last change %.0e\n", e.Value, e.Step, e.Value-last)
			return nil // stops the function at the owner
		}
		last = e.Value
	}
	return errors.New("the stream ended early")
}

// Command auto is one program in three roles. It calls a function that runs in this process or in the owner. The
// environment decides; the code is the same:
//
//	go run ./examples/auto                                                     # alone: the function runs here
//	SHARED_TENSOR_ENABLED=1 SHARED_TENSOR_ROLE=server go run ./examples/auto   # the owner: calls it once, and serves it to others
//	SHARED_TENSOR_ENABLED=1 go run ./examples/auto                             # a client: the owner runs it
//
// Owner and client print the same numbers. The second caller does not wait: the weights are the owner's, in place.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/node"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

// weightsArgs describes the weights to create.
type weightsArgs struct {
	Size int64   `json:"size"`
	Seed float32 `json:"seed"`
}

func run(ctx context.Context) error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer dev.Close()
	n, err := node.Open(ctx, node.Options{Devices: []driver.Device{dev}})
	if err != nil {
		return err
	}
	defer n.Close()

	// An ordinary function. Share decides where it runs.
	weights, err := node.Share(n, "weights", func(_ context.Context, in weightsArgs) (*tensor.Tensor, error) {
		fmt.Println("making weights in process", os.Getpid())
		values := make([]float32, in.Size)
		for i := range values {
			values[i] = in.Seed + float32(i)
		}
		return tensor.FromSlice(dev, tensor.Shape{in.Size}, values)
	}, endpoint.Cached()) // one run for each size and seed
	if err != nil {
		return err
	}

	w, err := weights(ctx, weightsArgs{Size: 4, Seed: 0.5}) // local or remote, with the same type and errors
	if err != nil {
		return err
	}
	defer w.Close()
	fmt.Printf("%s in process %d has %v\n", n.Mode(), os.Getpid(), w)
	return n.Serve(ctx) // only an owner waits here
}

// Command client sends batches to the example server and prints how the time was spent.
//
//	go run ./examples/compute/client [address]
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func main() {
	address := "127.0.0.1:50051"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	if err := run(context.Background(), address); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address string) error {
	client, err := compute.Dial(ctx, address, compute.ClientOptions{})
	if err != nil {
		return err
	}
	defer client.Close()
	info, err := client.Info(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("connected to %s %s on %s, %s parameters\n", info.Name, info.Version, info.Device, info.Custom["parameters"])

	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer dev.Close()
	in, err := tensor.Zeros(dev, tensor.Float32, tensor.Shape{1, 10, 768})
	if err != nil {
		return err
	}
	defer in.Close()
	for range 10 {
		result, err := client.ComputeTimed(ctx, "", in)
		if err != nil {
			return err
		}
		fmt.Printf("output %v in %v: network %v, compute %v\n", result.Tensor.Shape(), result.Total, result.Network, result.Compute)
		result.Tensor.Close()
	}
	s := client.Statistics()
	fmt.Printf("%d requests, on average %v of network and %v of compute\n", s.Requests, s.AvgNetwork, s.AvgCompute)
	return nil
}

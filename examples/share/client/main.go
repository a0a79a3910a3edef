// Command client attaches the tensors of an owner and prints the sum of each, computed on the owner's memory without a
// copy.
//
//	go run ./examples/share/client SOCKET NAME
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: client SOCKET NAME")
	}
	if err := sums(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func sums(socket, name string) error {
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
	handle, err := client.Acquire(ctx, name, endpoint.AcquireOptions{})
	if err != nil {
		return err
	}
	defer handle.Close()
	for name, t := range handle.StateDict().All() {
		values, err := tensor.Data[float32](t) // the owner's memory itself
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		var sum float64
		for _, v := range values {
			sum += float64(v)
		}
		fmt.Printf("%-24s %v %-12v sum %.4f\n", name, t.DType(), t.Shape(), sum)
	}
	return nil
}

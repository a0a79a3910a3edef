// Command exchange is the Go half of two small programs that exchange weights without a copy; exchange.py is the other
// half.
//
//	go run ./examples/python/exchange SOCKET
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func main() {
	ctx := context.Background()
	dev := must(host.Open())
	client := must(endpoint.Dial(ctx, endpoint.ClientOptions{Socket: os.Args[1], Devices: []driver.Device{dev}}))
	defer client.Close()

	handle := must(client.Acquire(ctx, "from-python", endpoint.AcquireOptions{})) // published by PyTorch, in place
	defer handle.Close()
	weight, _ := handle.StateDict().Get("fc.weight")
	fmt.Println("from python:", must(tensor.Data[float32](weight))[:3])

	model := module.NewStateDict()
	half := must(tensor.FromSlice(dev, tensor.Shape{4}, []float32{0.5, 1, 1.5, 2}))
	if err := model.Set("half", half); err != nil { // takes ownership of half
		log.Fatal(err)
	}
	fmt.Println("to python: version", must(client.Publish(ctx, "from-go", model, endpoint.PublishOptions{})))
	_, _ = fmt.Scanln() // holds both until its input ends
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

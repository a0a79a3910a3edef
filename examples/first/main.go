// Command first is the example of the README: an owner of a model of bfloat16, and a reader that uses it in place.
//
//	go run ./examples/first own model.safetensors &
//	go run ./examples/first read
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

func own(ctx context.Context, file string) {
	dev := must(host.Open()) // this host's shared memory
	server := must(endpoint.NewServer(endpoint.ServerOptions{Devices: []driver.Device{dev}}))
	weights := must(module.Load(ctx, dev, file, module.LoadOptions{})) // a file, a sharded index or a folder
	version := must(server.Publish(ctx, "llm", weights))               // the server refers to the memory now
	fmt.Println("serving version", version)
	log.Fatal(server.Serve(ctx))
}

func read(ctx context.Context) {
	dev := must(host.Open())
	client := must(endpoint.Dial(ctx, endpoint.ClientOptions{Devices: []driver.Device{dev}, Wait: true}))
	llm := must(client.Acquire(ctx, "llm")) // one message, one descriptor, one mmap, whatever its size
	defer llm.Close()
	head, ok := llm.StateDict().Get("lm_head.weight")
	if !ok { // a file has tied weights once
		head, ok = llm.StateDict().Get("model.embed_tokens.weight")
	}
	if !ok {
		log.Fatal("the model has no embedding")
	}
	values := must(tensor.Data[tensor.BF16](head)) // the owner's bytes, read-only
	fmt.Println(head.DType(), head.Shape(), values[0].Float32())
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "own":
		own(context.Background(), os.Args[2])
	case len(os.Args) == 2 && os.Args[1] == "read":
		read(context.Background())
	default:
		log.Fatal("usage: first own FILE | first read")
	}
}

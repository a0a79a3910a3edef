// Command first is the program of the README: an owner of a bfloat16 model and a worker that follows its versions.
//
//	go run ./examples/first own model.safetensors &
//	go run ./examples/first work
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
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func own(ctx context.Context, dev driver.Device, file string) error {
	server, err := endpoint.NewServer(endpoint.ServerOptions{Devices: []driver.Device{dev}})
	if err != nil {
		return err
	}
	weights, err := module.Load(ctx, dev, file, module.LoadOptions{}) // a file, a sharded index or a directory
	if err != nil {
		return err
	}
	if _, err = server.Publish(ctx, "llm", weights, endpoint.PublishOptions{}); err != nil {
		return err
	}
	return server.Serve(ctx) // until ctx ends
}

func work(ctx context.Context, dev driver.Device) error {
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Devices: []driver.Device{dev}, Wait: true})
	if err != nil {
		return err
	}
	defer client.Close()
	llm, err := client.Follow(ctx, "llm", endpoint.FollowOptions{}) // always holds the newest version
	if err != nil {
		return err
	}
	defer llm.Close()
	return llm.Use(answer) // one request: its version stays mapped until answer returns
}

// answer reads the embedding, which is the owner's memory, mapped read-only.
func answer(llm endpoint.ModelVersion) error {
	embedding, ok := llm.StateDict.Get("model.embed_tokens.weight")
	if !ok {
		return errors.New("the model has no embedding")
	}
	values, err := tensor.Data[tensor.BF16](embedding)
	if err != nil {
		return err
	}
	fmt.Println(embedding.DType(), embedding.Shape(), values[0].Float32())
	return nil
}

func main() {
	dev, err := host.Open() // shared memory of this host
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	switch {
	case len(os.Args) == 3 && os.Args[1] == "own":
		err = own(ctx, dev, os.Args[2])
	case len(os.Args) == 2 && os.Args[1] == "work":
		err = work(ctx, dev)
	default:
		err = errors.New("usage: first own FILE | first work")
	}
	if err != nil {
		log.Fatal(err)
	}
}

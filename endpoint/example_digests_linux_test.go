package endpoint_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// A version is published at once. Its owner then computes its digests, for readers that verify them.
func ExampleClient_Digests() {
	ctx := context.Background()
	dev, socket := exampleDevice()
	defer dev.Close()
	defer os.RemoveAll(filepath.Dir(socket))
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	go server.Serve(ctx)
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	weights, err := module.New(dev, []module.NamedSpec{{Name: "bias", DType: tensor.Float32, Shape: tensor.Shape{3}}})
	if err != nil {
		log.Fatal(err)
	}
	defer weights.Close()
	version, err := client.Publish(ctx, "llm", weights, endpoint.PublishOptions{Digests: true})
	if err != nil {
		log.Fatal(err)
	}
	digests, err := client.Digests(ctx, "llm", version) // waits until they are computed
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(digests.Tensors["bias"])
	llm, err := client.Acquire(ctx, "llm", endpoint.AcquireOptions{Digest: digests.Whole, OwnerDigest: true})
	if err != nil {
		log.Fatal(err)
	}
	defer llm.Close()
	fmt.Println("attached version", llm.Version())
	// Output:
	// 15ec7bf0b50732b49f8228e07d24365338f9e3ab994b00af08e5a3bffe55fd8b
	// attached version 1
}

// A watcher iterates over the changes of names until the loop ends.
func ExampleClient_Watch() {
	ctx := context.Background()
	dev, socket := exampleDevice()
	defer dev.Close()
	defer os.RemoveAll(filepath.Dir(socket))
	publish, end := exampleOwner(dev, socket)
	defer end()
	publish("bias", 1)
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	watcher, err := client.Watch(ctx) // all names
	if err != nil {
		log.Fatal(err)
	}
	defer watcher.Close()
	for e, err := range watcher.Events(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Kind, e.Name, e.Version)
		if e.Version == 2 {
			break
		}
		publish("bias", 2)
	}
	// Output:
	// published model 1
	// published model 2
}

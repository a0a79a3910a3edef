package endpoint_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// A worker may start before the owner, and before the model is published.
func ExampleNewClient() {
	ctx := context.Background()
	dev, socket := exampleDevice()
	defer dev.Close()
	defer os.RemoveAll(filepath.Dir(socket))

	client, err := endpoint.NewClient(endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	fmt.Println(client.State())

	publish, end := exampleOwner(dev, socket)
	defer end()
	go publish("bias", 1)
	handle, err := client.Acquire(ctx, "model", endpoint.AcquireOptions{Wait: true})
	if err != nil {
		log.Fatal(err)
	}
	defer handle.Close()
	stats := client.Stats()
	fmt.Println(stats.State, stats.Versions[0].Name, stats.Versions[0].Version, stats.BytesMapped > 0)
	// Output:
	// connecting
	// connected model 1 true
}

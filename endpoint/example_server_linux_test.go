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

// A function of the owner uses the weights that the owner shares. Each call uses the newest version, which another process may
// have published.
func ExampleServer_Follow() {
	ctx := context.Background()
	dev, socket := exampleDevice()
	defer dev.Close()
	defer os.RemoveAll(filepath.Dir(socket))

	var model *endpoint.Follower[endpoint.ModelVersion]
	functions := endpoint.NewRegistry()
	err := endpoint.Register(functions, "scale", func(_ context.Context, x float32) (y float32, err error) {
		err = model.Use(func(v endpoint.ModelVersion) error {
			w, _ := v.StateDict.Get("w")
			defer w.Close()
			weight, err := tensor.Item[float32](w)
			y = x * weight
			return err
		})
		return y, err
	})
	if err != nil {
		log.Fatal(err)
	}
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}, Registry: functions})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	w, err := tensor.FromSlice(dev, tensor.Shape{1}, []float32{3})
	if err != nil {
		log.Fatal(err)
	}
	weights := module.NewStateDict()
	if err := weights.Set("w", w); err != nil {
		log.Fatal(err)
	}
	if _, err := server.Publish(ctx, "model", weights, endpoint.PublishOptions{}); err != nil {
		log.Fatal(err)
	}
	if model, err = server.Follow(ctx, "model", endpoint.FollowOptions{}); err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	y, err := endpoint.Call[float32](ctx, server, "scale", 14)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(y)
	// Output: 42
}

package endpoint_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// An HTTP service uses the newest version of a model while versions are published.
func ExampleClient_Follow() {
	ctx := context.Background()
	dev, socket := exampleDevice()
	defer dev.Close()
	defer os.RemoveAll(filepath.Dir(socket))
	publish, end := exampleOwner(dev, socket)
	defer end()
	publish("bias", 1)

	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	model, err := client.Follow(ctx, "model", endpoint.FollowOptions{
		Validate: func(_ context.Context, v endpoint.ModelVersion) error {
			if _, ok := v.StateDict.Get("bias"); !ok {
				return fmt.Errorf("version %d has no bias", v.Version)
			}
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	service := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		err := model.Use(func(v endpoint.ModelVersion) error {
			bias, _ := v.StateDict.Get("bias")
			_, err := fmt.Fprint(w, bias)
			return err
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	ask := func() {
		answer := httptest.NewRecorder()
		service.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Println(answer.Body)
	}

	ask()
	changed := model.Changed()
	publish("weight", 2)
	<-changed
	fmt.Println("version", model.Status().Version, "stays:", model.Status().Refused)
	ask()
	changed = model.Changed()
	publish("bias", 3)
	<-changed
	ask()
	// Output:
	// tensor([1., 1.])
	// version 1 stays: version 2 has no bias
	// tensor([1., 1.])
	// tensor([3., 3.])
}

// exampleOwner returns a running owner, usually a separate process, and a function that publishes a model with one
// tensor.
func exampleOwner(dev driver.Device, socket string) (publish func(name string, value float32), end func() error) {
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}})
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(context.Background())
	publish = func(name string, value float32) {
		x, err := tensor.FromSlice(dev, tensor.Shape{2}, []float32{value, value})
		if err != nil {
			log.Fatal(err)
		}
		sd := module.NewStateDict()
		if err := sd.Set(name, x); err != nil {
			log.Fatal(err)
		}
		if _, err := server.Publish(context.Background(), "model", sd, endpoint.PublishOptions{}); err != nil {
			log.Fatal(err)
		}
		if err := sd.Close(); err != nil { // the server holds the memory
			log.Fatal(err)
		}
	}
	return publish, server.Close
}

// Command owner serves the functions of the example to every process of this user on this host, and a first model,
// base.
//
//	go run ./examples/service/owner SOCKET
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/examples/service"
)

func main() {
	if len(os.Args) != 2 || strings.HasPrefix(os.Args[1], "-") {
		log.Fatal("usage: owner SOCKET")
	}
	if err := own(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func own(socket string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer dev.Close()
	registry, err := endpoints(dev)
	if err != nil {
		return err
	}
	server, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: socket, Devices: []driver.Device{dev}, Registry: registry, Label: "examples/service",
	})
	if err != nil {
		return err
	}
	defer server.Close()
	base, err := build(ctx, dev, service.BuildArgs{HiddenSize: 64, Layers: 4})
	if err != nil {
		return err
	}
	defer base.Close()
	if _, err := server.Publish(ctx, "base", base, endpoint.PublishOptions{Source: "built at the start"}); err != nil {
		return err
	}
	go func() { _ = server.Serve(context.Background()) }()
	log.Printf("serving %s", server.Socket())
	<-ctx.Done()
	grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return server.Shutdown(grace)
}

// endpoints registers the functions.
func endpoints(dev driver.Device) (*endpoint.Registry, error) {
	r := endpoint.NewRegistry()
	f := functions{dev}
	return r, errors.Join(
		endpoint.Register(r, service.BuildModel, f.buildModel, endpoint.AsTask(), endpoint.Managed(), endpoint.CacheKey("model:{hidden_size}")),
		endpoint.Register(r, service.Transform, f.transform, endpoint.Timeout(time.Minute)),
		endpoint.RegisterStream(r, service.SpectralNorm, f.spectralNorm),
	)
}

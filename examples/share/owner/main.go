// Command owner loads a safetensors file into shared memory. Other processes of the same user on this host use it in
// place.
//
//	go run ./examples/share/owner SOCKET NAME FILE
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: owner SOCKET NAME FILE")
	}
	if err := own(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func own(socket, name, file string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer dev.Close()
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}})
	if err != nil {
		return err
	}
	defer server.Close()
	weights, err := module.Load(ctx, dev, file, module.LoadOptions{})
	if err != nil {
		return err
	}
	defer weights.Close()
	if _, err := server.Publish(ctx, name, weights, endpoint.PublishOptions{Source: file}); err != nil {
		return err
	}
	go func() { _ = server.Serve(context.Background()) }()
	log.Printf("serving %s on %s", name, server.Socket())
	<-ctx.Done()
	grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return server.Shutdown(grace)
}

// Command placeowner owns host memory and two GPUs and places versions on each, for the tests of the Python client.
//
//	placeowner SOCKET BUDGET
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: placeowner SOCKET BUDGET")
	}
	budget, err := strconv.ParseInt(os.Args[2], 10, 64)
	if err == nil {
		err = own(os.Args[1], budget)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// own serves until a signal arrives. Each device has a budget of that many bytes for placements.
func own(socket string, budget int64) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	memory, err := host.Open()
	if err != nil {
		return err
	}
	defer memory.Close()
	devices := []driver.Device{memory}
	for i := range 2 {
		gpu, err := cuda.Open(i)
		if err != nil {
			return err
		}
		defer gpu.Close()
		devices = append(devices, gpu)
	}
	var placements []endpoint.PlacementOptions
	for _, device := range devices {
		placements = append(placements, endpoint.PlacementOptions{Device: device, Budget: budget})
	}
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: devices, Placements: placements})
	if err != nil {
		return err
	}
	defer server.Close()
	go func() { _ = server.Serve(context.Background()) }()
	<-ctx.Done()
	return nil
}

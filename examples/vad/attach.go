package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// withAttached attaches the model of that name at the owner on the socket and lends it to use.
func withAttached(ctx context.Context, socket, name string, use func(*module.StateDict) error) (err error) {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	client, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Label: "vad"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	handle, err := client.Acquire(ctx, name, endpoint.AcquireOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, handle.Close()) }()
	if err := use(handle.StateDict()); err != nil {
		return fmt.Errorf("model %q: %w", name, err)
	}
	return nil
}

// withOwner starts an owner of the weights in the file on a private socket, attaches to it like any client, and lends
// the weights to use. Owner and socket are gone when it returns.
func withOwner(ctx context.Context, weights string, use func(*module.StateDict) error) (err error) {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	sd, err := module.Load(ctx, dev, weights, module.LoadOptions{})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "vad-")
	if err != nil {
		return errors.Join(err, sd.Close())
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: filepath.Join(dir, "vad.sock"), Devices: []driver.Device{dev}, Label: "vad",
	})
	if err != nil {
		return errors.Join(err, sd.Close())
	}
	stop := serve(server)
	defer func() { err = errors.Join(err, stop()) }()
	_, err = server.Publish(ctx, "vad", sd, endpoint.PublishOptions{})
	if err = errors.Join(err, sd.Close()); err != nil { // the server holds the memory
		return err
	}
	return withAttached(ctx, server.Socket(), "vad", use)
}

// serve runs the server in the background until stop, which closes it.
func serve(server *endpoint.Server) (stop func() error) {
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(context.Background()) }()
	return func() error {
		err := server.Close()
		if end := <-ended; !errors.Is(end, endpoint.ErrServerClosed) {
			err = errors.Join(err, end)
		}
		return err
	}
}

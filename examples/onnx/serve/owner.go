//go:build linux

package serve

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Own loads the files of onnx-split and serves them as name on the socket until ctx ends. SIGHUP publishes the files again
// as the next version.
func Own(ctx context.Context, socket, name, prefix string) (err error) {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	server, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: []driver.Device{dev}, Label: "onnx-owner"})
	if err != nil {
		return err
	}
	publish := func() error {
		sd, err := LoadPair(ctx, dev, prefix)
		if err != nil {
			return err
		}
		defer sd.Close()
		version, err := server.Publish(ctx, name, sd, endpoint.PublishOptions{Source: prefix})
		if err == nil {
			slog.Info("published", "name", name, "version", version)
		}
		return err
	}
	if err := publish(); err != nil {
		return errors.Join(err, server.Close())
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(context.WithoutCancel(ctx)) }()
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	for {
		select {
		case <-reload:
			if err := publish(); err != nil {
				slog.Error("the new files are not published", "error", err)
			}
		case err := <-ended:
			return err
		case <-ctx.Done():
			err := server.Close()
			if end := <-ended; !errors.Is(end, endpoint.ErrServerClosed) {
				err = errors.Join(err, end)
			}
			return err
		}
	}
}

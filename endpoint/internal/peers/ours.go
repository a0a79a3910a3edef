package main

import (
	"context"
	"errors"
	"io"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
)

// echoed is the message of the peers that encode Go structs.
type echoed struct{ Data []byte }

// ours is package endpoint. The functions have no cache, so equal calls run again, as with the other peers.
func ours() peer {
	return peer{
		name: "endpoint", serve: func(socket string) (io.Closer, error) { return serveOurs(socket, wire.Limits{}) },
		dial: func(socket string, _ int) (client, error) { return dialOurs(socket, "take", wire.Limits{}) },
	}
}

// oursSleeping is ours without polling before it sleeps, like the other peers.
func oursSleeping() peer {
	sleeping := wire.Limits{BusyPoll: -1}
	return peer{
		name: "endpoint, sleeping", onlySmall: true, serve: func(socket string) (io.Closer, error) { return serveOurs(socket, sleeping) },
		dial: func(socket string, _ int) (client, error) { return dialOurs(socket, "take", sleeping) },
	}
}

// oursBySocket is ours without a ring, with polling and sleeping.
func oursBySocket() peer { return withoutRing("endpoint, no ring", wire.Limits{Ring: -1}) }

func oursBySocketSleeping() peer {
	return withoutRing("endpoint, no ring, sleeping", wire.Limits{Ring: -1, BusyPoll: -1})
}

func withoutRing(name string, limits wire.Limits) peer {
	return peer{
		name: name, onlySmall: true, serve: func(socket string) (io.Closer, error) { return serveOurs(socket, limits) },
		dial: func(socket string, _ int) (client, error) { return dialOurs(socket, "take", limits) },
	}
}

// oursReading is ours with a function that reads its tensor.
func oursReading() peer {
	return peer{
		name: "endpoint, read", onlyTensors: true, serve: ours().serve,
		dial: func(socket string, _ int) (client, error) { return dialOurs(socket, "read", wire.Limits{}) },
	}
}

type closers []io.Closer

func (c closers) Close() error {
	var errs []error
	for _, one := range c {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

func serveOurs(socket string, limits wire.Limits) (io.Closer, error) {
	dev, err := host.Open()
	if err != nil {
		return nil, err
	}
	r := endpoint.NewRegistry()
	err = errors.Join(
		endpoint.Register(r, "echo", func(_ context.Context, in echoed) (echoed, error) { return in, nil }),
		endpoint.Register(r, "take", func(_ context.Context, in *tensor.Tensor) (uint64, error) {
			return uint64(in.Bytes()), nil
		}),
		endpoint.Register(r, "read", func(_ context.Context, in *tensor.Tensor) (uint64, error) {
			data, err := tensor.Data[uint8](in)
			if err != nil {
				return 0, err
			}
			return sign(data), nil
		}),
	)
	if err = errors.Join(err, fillers(dev, r)); err != nil {
		return nil, err
	}
	s, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: socket, Devices: []driver.Device{dev}, Registry: r, Limits: endpoint.Limits{Wire: limits},
	})
	if err != nil {
		return nil, err
	}
	go s.Serve(context.Background())
	return closers{s, dev}, nil
}

type oursClient struct {
	*endpoint.Client
	dev    driver.Device
	sendTo string // name of the function for tensors
}

func dialOurs(socket, send string, limits wire.Limits) (client, error) {
	dev, err := host.Open()
	if err != nil {
		return nil, err
	}
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}, Limits: limits})
	if err != nil {
		dev.Close()
		return nil, err
	}
	return oursClient{c, dev, send}, nil
}

func (c oursClient) echo(ctx context.Context, data []byte) ([]byte, error) {
	out, err := endpoint.Call[echoed](ctx, c.Client, "echo", echoed{Data: data})
	return out.Data, err
}

func (c oursClient) send(ctx context.Context, arg argument) (uint64, error) {
	return endpoint.Call[uint64](ctx, c.Client, c.sendTo, arg.tensor)
}

func (c oursClient) Close() error { return closers{c.Client, c.dev}.Close() }

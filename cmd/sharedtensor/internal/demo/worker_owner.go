package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/demonet"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// serve makes this process the owner. Without a path nothing is published.
func (w *worker) serve(ctx context.Context, path string) (reply, error) {
	if w.server != nil {
		return reply{}, fmt.Errorf("%w: this process is already the owner", driver.ErrInvalid)
	}
	server, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: socketPath(w.dir), Devices: []driver.Device{w.dev}, Label: "demo " + w.role,
	})
	if err != nil {
		return reply{}, err
	}
	answer := reply{Server: server.ID()}
	if path != "" {
		if err := w.loadFirst(ctx, server, path, &answer); err != nil {
			return reply{}, errors.Join(err, server.Close())
		}
	}
	w.server, w.served = server, make(chan error, 1)
	go func() { w.served <- server.Serve(context.Background()) }()
	return answer, nil
}

// loadFirst loads a model and publishes it as version 1. The worker keeps a separate reference for its own
// computations.
func (w *worker) loadFirst(ctx context.Context, server *endpoint.Server, path string, answer *reply) error {
	start := time.Now()
	sd, err := module.Load(ctx, w.dev, path, module.LoadOptions{Progress: w.progress})
	if err != nil {
		return err
	}
	answer.Took = time.Since(start)
	answer.Bytes = sd.Bytes()
	for _, s := range sd.Storages() {
		answer.Mapped += s.Bytes()
	}
	w.own = sd
	answer.Version, err = server.PublishWith(ctx, modelName, sd, endpoint.PublishOptions{Source: path})
	return err
}

// progress sends a progress reply. It ignores write errors, because sending the answer will fail in the same way.
func (w *worker) progress(done, total int64) {
	_ = w.out.Encode(reply{Progress: &progress{Done: done, Total: total}})
}

// publish loads a model, changes it, and passes its memory to the owner. This process keeps no reference.
func (w *worker) publish(ctx context.Context, path string) (_ reply, err error) {
	client, err := w.dial(ctx)
	if err != nil {
		return reply{}, err
	}
	start := time.Now()
	sd, err := module.Load(ctx, w.dev, path, module.LoadOptions{Progress: w.progress})
	if err != nil {
		return reply{}, err
	}
	defer func() { err = errors.Join(err, sd.Close()) }()
	answer := reply{Took: time.Since(start), Bytes: sd.Bytes()}
	if answer.Changed, err = change(sd); err != nil {
		return reply{}, err
	}
	r, err := demonet.Evaluate(ctx, sd)
	if err != nil {
		return reply{}, err
	}
	answer.Result = newResult(r)
	answer.Version, err = client.PublishWith(ctx, modelName, sd, endpoint.PublishOptions{Source: path})
	return answer, err
}

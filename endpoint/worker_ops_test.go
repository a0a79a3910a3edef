package endpoint_test

import (
	"context"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/wire"
)

// Commands of owners, and those that owners and clients share.

// service describes how an owner serves.
type service struct {
	Socket, Label string
	UIDs          []uint32 // other users that may connect
	Frame         int64    // its largest frame; 0 for the default
}

// serveOp has a worker serve. Its result is the server's id.
var serveOp = op("serve", func(w *worker, _ context.Context, in service) (string, error) {
	s, err := endpoint.NewServer(endpoint.ServerOptions{
		Socket: in.Socket, Devices: []driver.Device{w.dev}, Label: in.Label, Registry: testRegistry(w.dev, &w.counts),
		AllowUIDs: in.UIDs, Limits: endpoint.Limits{Wire: wire.Limits{Frame: in.Frame}},
	})
	if err != nil {
		return "", err
	}
	w.server = s
	go s.Serve(context.Background())
	return s.ID(), nil
})

// serve has a worker serve on a socket, and returns the server's id.
func (c *child) serve(socket string) string {
	c.t.Helper()
	return c.serveWith(service{Socket: socket})
}

// serveWith is serve with options.
func (c *child) serveWith(s service) string {
	c.t.Helper()
	return serveOp.Must(c.Process, s)
}

// serveError is the error of a worker that cannot serve.
func (c *child) serveError(socket string) error {
	c.t.Helper()
	return failure(c, serveOp, service{Socket: socket})
}

// shutdownOp shuts an owner down in a time. Its result is how long that took.
var shutdownOp = op("shutdown", func(w *worker, ctx context.Context, limit time.Duration) (time.Duration, error) {
	ctx, cancel := within(ctx, limit)
	defer cancel()
	return timed(func() error { return w.server.Shutdown(ctx) })
})

// shutdown shuts an owner down, and returns how long that took.
func (c *child) shutdown(limit time.Duration) time.Duration {
	c.t.Helper()
	return shutdownOp.Must(c.Process, limit)
}

// shutdownError is the error of a shutdown that has to fail.
func (c *child) shutdownError(limit time.Duration) error {
	c.t.Helper()
	return failure(c, shutdownOp, limit)
}

// closeServerOp closes an owner. Its result is how long that took.
var closeServerOp = op("close server", func(w *worker, _ context.Context, _ none) (time.Duration, error) {
	return timed(w.server.Close)
})

// closeServer closes an owner, and returns how long that took.
func (c *child) closeServer() time.Duration {
	c.t.Helper()
	return closeServerOp.Must(c.Process, none{})
}

// destroyOp has an owner destroy an object by its id.
var destroyOp = op("destroy", func(w *worker, ctx context.Context, id string) (none, error) {
	_, err := w.server.Destroy(ctx, id)
	return none{}, err
})

// destroy has an owner destroy an object.
func (c *child) destroy(id string) {
	c.t.Helper()
	destroyOp.Must(c.Process, id)
}

// model is a synthetic model under a name. Its content follows from the seed and the sizes.
type model struct {
	Name    string
	Seed    uint64
	Tensors int
	Bytes   int64
	Digests bool // whether it is published with digests
}

// publishOp has an owner or a client publish a model. Its result is the version.
var publishOp = op("publish", func(w *worker, ctx context.Context, m model) (uint64, error) {
	sd, err := synthetic(w.dev, m)
	if err != nil {
		return 0, err
	}
	defer sd.Close()
	return w.party().Publish(ctx, m.Name, sd, endpoint.PublishOptions{Digests: m.Digests})
})

// publish has an owner or a client publish a model, and returns the version.
func (c *child) publish(m model) uint64 {
	c.t.Helper()
	return publishOp.Must(c.Process, m)
}

// publishError is the error of a publication that has to fail.
func (c *child) publishError(m model) error {
	c.t.Helper()
	return failure(c, publishOp, m)
}

// withdrawOp has an owner or a client withdraw a name.
var withdrawOp = op("withdraw", func(w *worker, ctx context.Context, name string) (none, error) {
	return none{}, w.party().Withdraw(ctx, name)
})

// withdraw has an owner or a client withdraw a name.
func (c *child) withdraw(name string) {
	c.t.Helper()
	withdrawOp.Must(c.Process, name)
}

// modelsOp has an owner or a client list what the owner has published.
var modelsOp = op("models", func(w *worker, ctx context.Context, _ none) ([]endpoint.ModelInfo, error) {
	return w.party().List(ctx)
})

// models returns the published models, as reported by an owner or a client.
func (c *child) models() []endpoint.ModelInfo {
	c.t.Helper()
	return modelsOp.Must(c.Process, none{})
}

// ranOp counts.
var ranOp = op("ran", func(w *worker, _ context.Context, what string) (uint64, error) {
	return w.counts.get(what), nil
})

// ran returns how often an endpoint of a worker did something.
func (c *child) ran(what string) uint64 {
	c.t.Helper()
	return ranOp.Must(c.Process, what)
}

// countOp counts what a worker has open.
var countOp = op("count", func(*worker, context.Context, none) (proctest.Counts, error) {
	return proctest.Count(), nil
})

// count returns the open resources of a worker.
func (c *child) count() proctest.Counts {
	c.t.Helper()
	return countOp.Must(c.Process, none{})
}

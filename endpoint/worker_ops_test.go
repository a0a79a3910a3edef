package endpoint_test

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/endpointtest"
)

// opTimeout bounds a command of a worker that has no time limit of its own: it is what a hang takes.
const opTimeout = time.Minute

// model is a synthetic model under a name. Its content follows from the rest.
type model struct {
	Name    string
	Seed    uint64
	Tensors int
	Bytes   int64
}

// model is the model of a command.
func (c command) model() model { return model{c.Name, c.Seed, c.Tensors, c.Bytes} }

// acquisition asks for a version of a name, which the worker then holds under a key.
type acquisition struct {
	Name, Key string
	Version   uint64
	Millis    int64 // how long it may take
}

// acquired is what was acquired, and the id of the server that it came from.
type acquired struct {
	Version uint64
	ID      string
}

// kept is a handle under a key, and what it must hold.
type kept struct {
	Key   string
	Model model
}

// Commands of owners and clients.
var (
	publishOp = endpointtest.NewOp(workers, "publish", func(w *worker, m model) (uint64, error) {
		ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
		defer cancel()
		sd, err := synthetic(w.dev, m)
		if err != nil {
			return 0, err
		}
		defer sd.Close()
		return w.server.Publish(ctx, m.Name, sd)
	})
	modelsOp = endpointtest.NewOp(workers, "models", func(w *worker, _ struct{}) ([]endpoint.ModelInfo, error) {
		return w.server.List(context.Background())
	})
	acquireOp = endpointtest.NewOp(workers, "acquire", func(w *worker, in acquisition) (acquired, error) {
		limit := opTimeout
		if in.Millis > 0 {
			limit = time.Duration(in.Millis) * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		h, err := w.client.AcquireWith(ctx, in.Name, endpoint.AcquireOptions{Version: in.Version})
		if err != nil {
			return acquired{}, err
		}
		w.handles[in.Key] = h
		return acquired{h.Version(), h.ServerID()}, nil
	})
	checkOp = endpointtest.NewOp(workers, "check", func(w *worker, in kept) (struct{}, error) {
		return struct{}{}, w.check(w.handles[in.Key], in.Model)
	})
	countOp = endpointtest.NewOp(workers, "count", func(*worker, struct{}) (endpointtest.Counts, error) {
		return endpointtest.Count(), nil
	})
)

// publish has an owner publish a model, and returns the version.
func (c *child) publish(m model) uint64 {
	c.t.Helper()
	return publishOp.Must(c.Process, m)
}

// publishError is the error of a publication that has to fail.
func (c *child) publishError(m model) error {
	c.t.Helper()
	_, err := publishOp.Ask(c.Process, m)
	require.Error(c.t, err)
	return err
}

// models are what an owner has published.
func (c *child) models() []endpoint.ModelInfo {
	c.t.Helper()
	return modelsOp.Must(c.Process, struct{}{})
}

// acquire has a client acquire a version and hold it.
func (c *child) acquire(in acquisition) acquired {
	c.t.Helper()
	return acquireOp.Must(c.Process, in)
}

// acquireError is the error of an acquisition that has to fail.
func (c *child) acquireError(in acquisition) error {
	c.t.Helper()
	_, err := acquireOp.Ask(c.Process, in)
	require.Error(c.t, err)
	return err
}

// check compares every byte of what a client holds with the model.
func (c *child) check(key string, m model) {
	c.t.Helper()
	checkOp.Must(c.Process, kept{key, m})
}

// count is what a worker has open.
func (c *child) count() endpointtest.Counts {
	c.t.Helper()
	return countOp.Must(c.Process, struct{}{})
}

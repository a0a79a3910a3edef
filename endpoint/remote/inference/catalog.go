package inference

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// catalog derives the models from the gateway's functions. A model keeps its statistics, versions and batcher while its function
// stays.
type catalog struct {
	owner gateway.Owner
	// allow returns an error if the sender of a request may not call a function.
	allow func(ctx context.Context, name string) error
	// batches has the settings of models that differ from those of their functions. queue limits the waiting requests of
	// a model.
	batches map[string]batching
	queue   int

	mu       sync.Mutex
	of       *gateway.Functions // from which the models are derived
	byName   map[string]*model  // includes unloaded models
	unloaded map[string]bool
}

// find returns a model that can be called, with its caller.
func (c *catalog) find(ctx context.Context, name string) (*model, error) {
	m, err := c.lookup(ctx, name)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	gone := c.unloaded[name]
	c.mu.Unlock()
	if gone {
		return nil, fmt.Errorf("%w: model %q was unloaded: load it first", ErrNotReady, clip(name))
	}
	if m.owned { // the gateway may have a client although the owner is gone
		if _, err := c.owner.Client(); err != nil {
			return nil, err
		}
	}
	return m, m.ready()
}

// lookup returns a model, even if it is unloaded or cannot be called.
func (c *catalog) lookup(ctx context.Context, name string) (*model, error) {
	if err := c.allow(ctx, name); err != nil {
		return nil, err
	}
	all, err := c.current(ctx)
	if err != nil {
		c.mu.Lock()
		m := c.byName[name]
		c.mu.Unlock()
		if m != nil && !m.owned { // of the embedding program
			return m, nil
		}
		return nil, err
	}
	if m := all[name]; m != nil {
		return m, nil
	}
	if all, err = c.refresh(ctx); err != nil {
		return nil, err
	}
	m := all[name]
	if m == nil {
		return nil, &unknownModel{fmt.Sprintf("Request for unknown model: '%s' is not found", clip(name))}
	}
	return m, nil
}

// current returns the models of the cached functions.
func (c *catalog) current(ctx context.Context) (map[string]*model, error) {
	functions, err := c.owner.Functions(ctx)
	if err != nil {
		return nil, err
	}
	return c.derive(functions), nil
}

// refresh lists the functions and returns the models.
func (c *catalog) refresh(ctx context.Context) (map[string]*model, error) {
	functions, err := c.owner.ListFunctions(ctx)
	if err != nil {
		return nil, err
	}
	return c.derive(functions), nil
}

// derive returns the models of functions.
func (c *catalog) derive(functions *gateway.Functions) map[string]*model {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == functions {
		return c.byName
	}
	all := make(map[string]*model, len(functions.List))
	for _, f := range functions.List {
		m := newModel(f.Caller, f.EndpointInfo)
		if m == nil {
			continue
		}
		before := c.byName[m.name]
		if before != nil {
			m.stats = before.stats
		}
		c.batchLocked(m, before)
		if before != nil && before.equal(m) {
			m = before // it caches its versions
		}
		all[m.name] = m
	}
	c.of, c.byName = functions, all
	return all
}

// batchLocked sets the batcher of a model: that of the same model before a refresh, so that its requests can join others.
func (c *catalog) batchLocked(m, before *model) {
	if own, set := c.batches[m.name]; set {
		m.batching = own
	}
	switch {
	case m.batching.max < 2 || m.stream:
		m.batching = batching{}
	case before != nil && before.batcher != nil && before.batching == m.batching:
		m.batcher = before.batcher
	default:
		m.batcher = &batcher{batching: m.batching, limit: c.queue}
	}
}

// all returns the models that the sender may call, sorted by name.
func (c *catalog) all(ctx context.Context) ([]*model, error) {
	if err := c.allow(ctx, ""); err != nil {
		return nil, err
	}
	byName, err := c.refresh(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]*model, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		list = append(list, byName[name])
	}
	return rights.Filter(rights.Sender(ctx), access.Call, list, func(m *model) string { return m.name }), nil
}

// known returns the models found by the last refresh. It sends no request.
func (c *catalog) known() []*model {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*model, 0, len(c.byName))
	for _, name := range slices.Sorted(maps.Keys(c.byName)) {
		list = append(list, c.byName[name])
	}
	return list
}

// isUnloaded reports whether a client has unloaded the model.
func (c *catalog) isUnloaded(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unloaded[name]
}

// setLoaded sets whether the gateway answers requests for a model. It changes nothing at the owner.
func (c *catalog) setLoaded(ctx context.Context, name string, loaded bool) error {
	m, err := c.lookup(ctx, name)
	if err != nil {
		return err
	}
	if loaded {
		if err := m.ready(); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if loaded {
		delete(c.unloaded, name)
		return nil
	}
	if c.unloaded == nil {
		c.unloaded = make(map[string]bool)
	}
	c.unloaded[name] = true
	return nil
}

// bind returns a context for a request to the owner that is cancelled when the owner disconnects.
func (c *catalog) bind(ctx context.Context, m *model) (context.Context, context.CancelFunc) {
	if m.owned {
		return c.owner.Bind(ctx)
	}
	return ctx, func() {}
}

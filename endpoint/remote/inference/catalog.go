package inference

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// catalog caches the models. It lists the owner's endpoints when another owner connects, when it does not find a name, and
// when the list is older than listTime: the functions of workers change.
type catalog struct {
	owner gateway.Owner
	// allow returns an error if the sender of a request may not call a function.
	allow func(ctx context.Context, name string) error
	// batches has the settings of models that differ from those of their functions. queue limits the waiting requests of
	// a model.
	batches map[string]batching
	queue   int

	mu       sync.Mutex
	asked    bool
	server   string            // the owner that was listed
	at       time.Time         // of the last list, or of the last attempt
	byName   map[string]*model // includes unloaded models
	unloaded map[string]bool
}

// listTime is the maximum age of the list of endpoints.
const listTime = time.Second

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
	server := c.owner.ServerID()
	c.mu.Lock()
	m := c.byName[name]
	current := c.asked && c.server == server
	old := time.Since(c.at) > listTime
	if old {
		c.at = time.Now() // only one request lists the endpoints
	}
	c.mu.Unlock()
	known := m != nil && (current || !m.owned)
	if known && (!old || !m.owned) {
		return m, nil
	}
	all, err := c.refresh(ctx)
	if err != nil && known {
		return m, nil // the call reports whether there is an owner
	}
	if err != nil {
		return nil, err
	}
	if m = all[name]; m == nil {
		return nil, &unknownModel{fmt.Sprintf("Request for unknown model: '%s' is not found", clip(name))}
	}
	return m, nil
}

// refresh lists the endpoints and returns the models.
func (c *catalog) refresh(ctx context.Context) (map[string]*model, error) {
	server := c.owner.ServerID()
	callers := c.owner.Callers()
	if len(callers) == 0 {
		_, err := c.owner.Client()
		return nil, err
	}
	all := make(map[string]*model)
	taken := make(map[string]bool) // the embedding program's endpoints take precedence, even if they are not models
	for _, caller := range callers {
		bound, unbind := c.owner.Bind(ctx)
		list, err := caller.Endpoints(bound)
		unbind()
		if err != nil {
			return nil, err
		}
		for _, info := range list {
			if taken[info.Name] {
				continue
			}
			taken[info.Name] = true
			if m := newModel(caller, info); m != nil {
				all[info.Name] = m
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, m := range all {
		before := c.byName[name]
		if before != nil {
			m.stats = before.stats
		}
		c.batchLocked(m, before)
		if before != nil && before.equal(m) {
			all[name] = before // it caches its versions
		}
	}
	c.asked, c.server, c.byName, c.at = true, server, all, time.Now()
	return all, nil
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

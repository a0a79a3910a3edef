package endpoint

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
)

// endpoints are all that a server has: its own, and those that clients offer, whose functions they run.
type endpoints struct {
	registry *Registry // nil for none
	offers   *offering.Table
}

// find returns the endpoint of that name, the server's own or one of a worker.
func (e *endpoints) find(name string) (*engine.Definition, error) {
	d, err := e.registry.find(name)
	if err == nil {
		return d, nil
	}
	if d := e.offers.Lookup(name); d != nil {
		return d, nil
	}
	return nil, err
}

// lookup is find for a name that is a part of a message; nil where there is no such endpoint.
func (e *endpoints) lookup(name []byte) *engine.Definition {
	if d := e.registry.lookup(name); d != nil {
		return d
	}
	return e.offers.Lookup(string(name))
}

// list lists the server's own endpoints, and then those of workers, each in the order of their names.
func (e *endpoints) list() []*engine.Definition {
	return append(e.registry.list(), e.offers.List()...)
}

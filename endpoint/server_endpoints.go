package endpoint

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
)

// endpoints holds the server's own endpoints and those offered by clients.
type endpoints struct {
	registry *Registry // nil for none
	offers   *offering.Table
}

// find returns the endpoint with the given name, registered or offered.
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

// lookup is find for a name within a message. It returns nil if there is no such endpoint.
func (e *endpoints) lookup(name []byte) *engine.Definition {
	if d := e.registry.lookup(name); d != nil {
		return d
	}
	return e.offers.Lookup(string(name))
}

// list returns the server's own endpoints, then offered ones, each sorted by name.
func (e *endpoints) list() []*engine.Definition {
	return append(e.registry.list(), e.offers.List()...)
}

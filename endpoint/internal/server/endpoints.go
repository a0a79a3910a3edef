package server

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/offering"
)

// Endpoints holds the server's own endpoints and those offered by clients.
type Endpoints struct {
	Registry *engine.Registry // nil for none
	Offers   *offering.Table  // offered by clients
}

// find returns the endpoint with the given name, registered or offered.
func (e *Endpoints) find(name string) (*engine.Definition, error) {
	d, err := e.Registry.Find(name)
	if err == nil {
		return d, nil
	}
	if d := e.Offers.Lookup(name); d != nil {
		return d, nil
	}
	return nil, err
}

// lookup is find for a name within a message. It returns nil if there is no such endpoint.
func (e *Endpoints) lookup(name []byte) *engine.Definition {
	if d := e.Registry.Lookup(name); d != nil {
		return d
	}
	return e.Offers.Lookup(string(name))
}

// List returns the server's own endpoints, then offered ones, each sorted by name.
func (e *Endpoints) List() []*engine.Definition {
	return append(e.Registry.List(), e.Offers.List()...)
}

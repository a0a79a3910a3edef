package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// Registry holds definitions by name. A nil *Registry is empty. Its methods are safe for concurrent use.
type Registry struct {
	mu     sync.RWMutex
	byName map[string]*Definition
}

// Add adds a definition. It fails with [status.ErrRegistered] if the name is in use.
func (r *Registry) Add(d *Definition) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byName == nil {
		r.byName = map[string]*Definition{}
	}
	if r.byName[d.Name] != nil {
		return fmt.Errorf("register %q: %w", d.Name, status.ErrRegistered)
	}
	r.byName[d.Name] = d
	return nil
}

// Find returns the endpoint with the given name.
func (r *Registry) Find(name string) (*Definition, error) {
	if d := r.Lookup([]byte(name)); d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("endpoint %s: %w", status.Shown(name), status.ErrNoEndpoint)
}

// Lookup returns the endpoint with the given name, which may be part of a message, or nil.
func (r *Registry) Lookup(name []byte) *Definition {
	if r == nil {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byName[string(name)]
}

// List returns the endpoints, sorted by name.
func (r *Registry) List() []*Definition {
	if r == nil {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.SortedFunc(maps.Values(r.byName), func(a, b *Definition) int { return strings.Compare(a.Name, b.Name) })
}

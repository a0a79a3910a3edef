// Package offering holds the endpoints of a server whose functions run in other processes. Workers offer endpoints.
// Each call is sent to the worker with the fewest calls. Every answer is validated.
package offering

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/engine"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Config is the configuration of a table.
type Config struct {
	Log      *slog.Logger     // receives a warning for each stuck worker
	Devices  transfer.Devices // devices for the memory of results
	Refusals status.Refusals  // counts refusals by limit
	Limits   status.Limits    // limits of offers, calls and answers
	Overdue  time.Duration    // for which a function may run after its caller has left; 0 means 30 seconds
	// Taken reports whether the server itself registered an endpoint of that name.
	Taken func(name string) bool
	// Borrow returns the memory that the server shares under a name; nil for an unknown name. The caller closes it.
	Borrow func(name string) *tensor.Storage
	// Withdrawn is called for an endpoint when its last offer ends.
	Withdrawn func(name string)
}

// Table holds the endpoints that the workers of a server offer.
type Table struct {
	Config

	mu      sync.Mutex
	by      map[string]*endpoint
	offered int    // number of endpoints, counted once for each offer
	bytes   int64  // size of their descriptions
	waiting int    // number of calls that wait for a slot
	turn    uint64 // turn of the last call
}

// endpoint is one endpoint that workers offer. Its fields are guarded by the table's lock.
type endpoint struct {
	table       *Table
	description []byte
	info        message.EndpointInfo
	definition  *engine.Definition
	offers      []*offer  // offers that include the endpoint
	queue       []*waiter // calls that wait for a slot, ordered by their turns
}

// New returns an empty table.
func New(c Config) *Table {
	if c.Overdue <= 0 {
		c.Overdue = defaultOverdue
	}
	return &Table{Config: c, by: map[string]*endpoint{}}
}

// Lookup returns the endpoint of that name, or nil if no worker offers it.
func (t *Table) Lookup(name string) *engine.Definition {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.by[name]; e != nil {
		return e.definition
	}
	return nil
}

// List returns the endpoints sorted by name.
func (t *Table) List() []*engine.Definition {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*engine.Definition, 0, len(t.by))
	for _, e := range t.by {
		list = append(list, e.definition)
	}
	slices.SortFunc(list, func(a, b *engine.Definition) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Use returns the number of endpoints that are offered, and the bytes of their descriptions.
func (t *Table) Use() (endpoints int, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.offered, t.bytes
}

// joinLocked adds an endpoint to an offer. It fails if the name is taken.
func (t *Table) joinLocked(o *offer, d description) error {
	e := t.by[d.info.Name]
	switch {
	case t.Taken(d.info.Name):
		return fmt.Errorf("offer %q: %w by the owner itself", d.info.Name, status.ErrRegistered)
	case e == nil:
		e = &endpoint{table: t, description: d.encoded, info: d.info}
		e.definition = e.define()
		t.by[d.info.Name] = e
	case !bytes.Equal(e.description, d.encoded):
		return fmt.Errorf("offer %q: %w by another worker, with another description; workers that share an endpoint must describe it alike",
			d.info.Name, status.ErrRegistered)
	}
	e.offers = append(e.offers, o)
	o.endpoints = append(o.endpoints, e)
	return nil
}

// removeLocked removes the endpoints of an offer. It returns the names that no other offer includes.
func (t *Table) removeLocked(o *offer) (withdrawn []string) {
	for _, e := range o.endpoints {
		e.offers = slices.DeleteFunc(e.offers, func(other *offer) bool { return other == o })
		if len(e.offers) > 0 {
			e.failStuckLocked()
			continue
		}
		delete(t.by, e.info.Name)
		withdrawn = append(withdrawn, e.info.Name)
		e.failQueueLocked(errWithdrawn(e.info.Name))
	}
	o.endpoints = nil
	return withdrawn
}

// reportWithdrawn reports endpoints whose last offer has ended. It is called without the lock.
func (t *Table) reportWithdrawn(names []string) {
	for _, name := range names {
		t.Withdrawn(name)
	}
}

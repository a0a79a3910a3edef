// Package reference keeps the client's references to managed objects of its owner across connections.
package reference

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// Table holds the live references of one client by object.
type Table struct {
	conn *connector.Connector
	log  *slog.Logger

	mu    sync.Mutex
	byID  map[string]map[*Reference]struct{}
	count int
	ended bool // the client was closed
}

// New returns the table of a client. The caller adds it to the dependents of the connector.
func New(conn *connector.Connector, log *slog.Logger) *Table { return &Table{conn: conn, log: log} }

// Len returns the number of references.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

// Needed implements [connector.Dependents].
func (t *Table) Needed() bool { return t.Len() > 0 }

// Resume implements [connector.Dependents].
func (t *Table) Resume(l *link.Link) (jobs []func(context.Context) error) {
	for _, r := range t.all() {
		if r.heldOn() != l {
			jobs = append(jobs, func(ctx context.Context) error { return r.resume(ctx, l) })
		}
	}
	return jobs
}

// Lost implements [connector.Dependents]. If the owner is shutting down, its objects no longer exist either.
func (t *Table) Lost(l *link.Link) {
	left := l.OwnerLeft()
	for _, r := range t.all() {
		if left && r.heldOn() == l {
			t.lose(r, status.StaleObjectMissing)
		}
		r.detach(l)
	}
}

// End implements [connector.Dependents].
func (t *Table) End() {
	t.mu.Lock()
	all := t.allLocked()
	t.byID, t.count, t.ended = nil, 0, true
	t.mu.Unlock()
	for _, r := range all {
		r.end(ErrReleased)
	}
}

// LoseAll ends all references because their objects no longer exist.
func (t *Table) LoseAll() {
	for _, r := range t.all() {
		t.lose(r, status.StaleObjectMissing)
	}
}

// all returns all references.
func (t *Table) all() []*Reference {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.allLocked()
}

func (t *Table) addLocked(r *Reference) {
	if t.byID == nil {
		t.byID = map[string]map[*Reference]struct{}{}
	}
	same := t.byID[r.ID]
	if same == nil {
		same = map[*Reference]struct{}{}
		t.byID[r.ID] = same
	}
	same[r] = struct{}{}
	t.count++
}

// removeLocked removes a reference if it is present.
func (t *Table) removeLocked(r *Reference) {
	same := t.byID[r.ID]
	if _, there := same[r]; !there {
		return
	}
	t.count--
	if delete(same, r); len(same) == 0 {
		delete(t.byID, r.ID)
	}
}

// to returns the references to an object.
func (t *Table) to(id string) []*Reference {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.byID[id]))
}

// allLocked returns all references.
func (t *Table) allLocked() []*Reference {
	list := make([]*Reference, 0, t.count)
	for _, same := range t.byID {
		for r := range same {
			list = append(list, r)
		}
	}
	return list
}

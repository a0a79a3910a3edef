package server

import (
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// exports holds a server's exports by state dict.
type exports struct {
	mu sync.RWMutex
	by map[*module.StateDict]*transfer.Export
}

// put stores an export until its state dict is dropped. It takes ownership of out.
func (x *exports) put(sd *module.StateDict, out *transfer.Export) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.by == nil {
		x.by = map[*module.StateDict]*transfer.Export{}
	}
	x.by[sd] = out
}

// of returns the export of a state dict. The caller must hold a lease on it and borrows the export for the duration of
// the lease.
func (x *exports) of(sd *module.StateDict) *transfer.Export {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.by[sd]
}

// take removes and returns the export of a state dict that the catalog has dropped, or nil. The caller closes it.
func (x *exports) take(sd *module.StateDict) *transfer.Export {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.by[sd]
	delete(x.by, sd)
	return out
}

// storages returns the storages of all exports.
func (x *exports) storages() [][]*tensor.Storage {
	x.mu.RLock()
	defer x.mu.RUnlock()
	list := make([][]*tensor.Storage, 0, len(x.by))
	for _, out := range x.by {
		list = append(list, out.Storages)
	}
	return list
}

// Storages returns the storages that are sent to readers. They are borrowed and may be closed concurrently.
func (m *Models) Storages() [][]*tensor.Storage { return m.exports.storages() }

// Held calls visit for each holder of leases with the number and the storages of its leases. The storages are borrowed
// and may be closed concurrently.
func (m *Models) Held(visit func(holder uint64, leases int, storages [][]*tensor.Storage)) {
	for _, h := range m.Catalog.Holdings() {
		var storages [][]*tensor.Storage
		for _, l := range h.Leases {
			if out := m.exports.of(l.StateDict()); out != nil { // nil if the lease was just released
				storages = append(storages, out.Storages)
			}
		}
		visit(h.ID, len(h.Leases), storages)
	}
}

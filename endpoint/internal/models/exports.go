package models

import (
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// exports are a server's exports by the state dict they belong to.
type exports struct {
	mu sync.RWMutex
	by map[*module.StateDict]*transfer.Export
}

// put keeps an export until its state dict is dropped. It takes out.
func (x *exports) put(sd *module.StateDict, out *transfer.Export) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.by == nil {
		x.by = map[*module.StateDict]*transfer.Export{}
	}
	x.by[sd] = out
}

// of returns the export of a state dict that the caller holds a lease on, borrowed for as long as that lasts.
func (x *exports) of(sd *module.StateDict) *transfer.Export {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.by[sd]
}

// take returns the export of a state dict that is not in the catalog any more, or nil. The caller closes it.
func (x *exports) take(sd *module.StateDict) *transfer.Export {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.by[sd]
	delete(x.by, sd)
	return out
}

// storages are those of all exports of state dicts.
func (x *exports) storages() [][]*tensor.Storage {
	x.mu.RLock()
	defer x.mu.RUnlock()
	list := make([][]*tensor.Storage, 0, len(x.by))
	for _, out := range x.by {
		list = append(list, out.Storages)
	}
	return list
}

// Storages are those of all that readers are sent. Borrowed: they may be closed meanwhile.
func (m *Models) Storages() [][]*tensor.Storage { return m.exports.storages() }

// Held are the holders of leases, with how many they have and the storages of these. Borrowed: they may be closed
// meanwhile.
func (m *Models) Held(visit func(holder uint64, leases int, storages [][]*tensor.Storage)) {
	for _, h := range m.Catalog.Holdings() {
		var storages [][]*tensor.Storage
		for _, l := range h.Leases {
			if out := m.exports.of(l.StateDict()); out != nil { // else it was given back just now
				storages = append(storages, out.Storages)
			}
		}
		visit(h.ID, len(h.Leases), storages)
	}
}

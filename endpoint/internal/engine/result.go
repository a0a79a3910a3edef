package engine

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/cache"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Result is what a run of an endpoint made, ready to be sent any number of times. It is counted: the cache, a task, a
// managed object and whoever sends it have a reference each, as a resultRef, and the last one gives the memory back.
type Result struct {
	Payload codec.Payload // owned
	refs    atomic.Int64
	names   *transfer.MemoryNames // has names for some of the storages; may be nil
	named   []*tensor.Storage     // those

	mu     sync.Mutex
	shared *transfer.Export // made at the first send, serves all later ones
}

// newResult takes the payload. The caller has the one reference.
func newResult(p codec.Payload) *Result {
	r := &Result{Payload: p}
	r.refs.Store(1)
	return r
}

// retain adds a reference to one that the caller knows to exist.
func (r *Result) retain() *Result {
	r.refs.Add(1)
	return r
}

// Release gives a reference back. What receivers have mapped stays theirs.
func (r *Result) Release() {
	if r.refs.Add(-1) > 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shared != nil {
		r.shared.Close()
	}
	for _, s := range r.named {
		r.names.Remove(s)
	}
	r.Payload.Close()
}

// Returned is the answer that carries the result, inProcess for a client in this process, which gets the storages
// themselves. The files are the result's, valid while the caller's reference is.
func (r *Result) Returned(inProcess bool) (message.Returned, []*os.File, error) {
	out := message.Returned{Value: r.Payload.Value}
	if len(r.Payload.Storages) == 0 {
		return out, nil, nil
	}
	if inProcess {
		shared, err := transfer.ExportInProcess(r.Payload.Storages)
		if err != nil {
			return out, nil, fmt.Errorf("share the result: %w", err)
		}
		out.Handles = shared.Handles
		return out, nil, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shared == nil {
		shared, err := transfer.ExportStorages(r.Payload.Storages)
		if err != nil {
			return out, nil, fmt.Errorf("share the result: %w", err)
		}
		for i, s := range r.Payload.Storages {
			if slices.Contains(r.named, s) {
				shared.Handles[i].Name = r.names.Name(s)
			}
		}
		r.shared = shared
	}
	out.Handles = r.shared.Handles
	return out, r.shared.Files, nil
}

// resultCost is what a cached result costs of the budget.
func resultCost(key cache.Key, r *Result) int64 {
	return r.Payload.Bytes() + int64(len(key.Group)+len(key.ID))
}

// Empty reports whether the result is nothing at all.
func (r *Result) Empty() bool { return codec.IsNull(r.Payload.Value) }

// CheckLasting refuses memory that ends with its owner's reference: whoever gets it with a result would have it for as
// long as nobody frees it. A managed result is kept for its receivers, other kinds of memory keep themselves.
func CheckLasting(kind string, kept bool) error {
	if kept || kind != string(driver.CUDAIPC) {
		return nil
	}
	return status.Capability(&driver.UnsupportedError{
		Feature:  "a result in memory of kind " + kind,
		Requires: "a managed endpoint, or memory that outlives its owner (cuda-fd)",
	})
}

// CheckSettled refuses memory of another process, as a result, that ends with that process, or that somebody could
// still open for writing.
func CheckSettled(kind string, s *tensor.Storage) error {
	if kind == string(driver.CUDAIPC) {
		return status.Capability(&driver.UnsupportedError{
			Feature: "a worker's result in memory of kind " + kind, Requires: "memory that outlives its owner (cuda-fd)",
		})
	}
	if f, can := s.Memory().(driver.Freezer); can && !f.Frozen() {
		return fmt.Errorf("%w: the worker has to seal the memory of a result against new writers", status.ErrPermission)
	}
	return nil
}

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

// Result is the encoded result of a run. It can be sent any number of times. It is reference counted: the cache, each
// task, each managed object and each send in progress holds a ResultRef. The last release frees the memory.
type Result struct {
	object  *Object // managed object with the result; nil for none; guarded by objects.Mu
	holders int     // number of sessions whose memory counts the result; guarded by resultMemory.mu

	Payload codec.Payload // owned
	refs    atomic.Int64
	names   *transfer.MemoryNames // contains named; may be nil
	named   []*tensor.Storage     // storages that are in names

	Sent transfer.Sent // sessions that number the memory

	mu     sync.Mutex
	shared *transfer.Export // created by the first send and reused by later ones
}

// newResult takes the payload. The caller owns the only reference.
func newResult(p codec.Payload) *Result {
	r := &Result{Payload: p}
	r.refs.Store(1)
	return r
}

// retain adds a reference. The caller must hold one.
func (r *Result) retain() *Result {
	r.refs.Add(1)
	return r
}

// Release releases a reference. Receivers keep the memory that they have mapped.
func (r *Result) Release() {
	if r.refs.Add(-1) > 0 {
		return
	}
	r.Sent.End(r.Payload.Storages)
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

// Returned returns the message that carries the result. If inProcess is true, the files carry the storages themselves,
// for a client in this process. The files belong to the result and are valid while the caller holds its reference.
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

// resultCost returns the cost of a cached result in the cache's budget.
func resultCost(key cache.Key, r *Result) int64 {
	return r.Payload.Bytes() + int64(len(key.Group)+len(key.ID))
}

// Empty reports whether the result is null.
func (r *Result) Empty() bool { return codec.IsNull(r.Payload.Value) }

// CheckLasting returns an error for memory that becomes invalid when its owner releases it, because the owner cannot
// track the receivers of a result. A managed result (kept) is held for its receivers. Other kinds of memory stay valid
// while they are mapped.
func CheckLasting(kind string, kept bool) error {
	if kept || kind != string(driver.CUDAIPC) {
		return nil
	}
	return status.Capability(&driver.UnsupportedError{
		Feature:  "a result in memory of kind " + kind,
		Requires: "a managed endpoint, or memory that outlives its owner (cuda-fd)",
	})
}

// CheckSettled returns an error for memory of another process in a result if it becomes invalid when that process ends,
// or if another process could still open it for writing.
func CheckSettled(kind string, s *tensor.Storage) error {
	if kind == string(driver.CUDAIPC) {
		return status.Capability(&driver.UnsupportedError{
			Feature: "a worker's result in memory of kind " + kind, Requires: "memory that outlives its owner (cuda-fd)",
		})
	}
	if d, err := s.Memory().Describe(); err != nil || d.Freezable && !d.Frozen {
		return fmt.Errorf("%w: the worker must seal the memory of a result against new writers", status.ErrPermission)
	}
	return nil
}

// ResultRef is one reference to a result, held by a task, an object or a send in progress. For a cached result it also
// pins the cache entry: evicting a result that is still held would free no memory and cost the next caller a run.
type ResultRef struct {
	*Result
	entry *cache.Ref[*Result] // nil if the result is not cached
}

// clone returns another reference. g must not have been released.
func (g ResultRef) clone() ResultRef {
	if g.entry != nil {
		if entry, err := g.entry.Clone(); err == nil {
			return ResultRef{g.Result, entry}
		}
	}
	return ResultRef{Result: g.retain()}
}

// Release releases the reference.
func (g ResultRef) Release() {
	if g.entry != nil {
		_ = g.entry.Close() // a second Close returns nil, and there are no other errors
		return
	}
	g.Result.Release()
}

// Discard removes the result from the cache.
func (g ResultRef) Discard() {
	if g.entry != nil {
		g.entry.Discard()
	}
}

// key returns the cache key of the result, or "" if the cache does not hold it.
func (g ResultRef) key() string {
	if g.entry == nil || !g.entry.Findable() {
		return ""
	}
	return g.entry.Key().String()
}

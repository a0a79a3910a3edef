package endpoint

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/lease"
	"github.com/sharedtensor/sharedtensor/module"
)

// HandleState is how a handle's version stands at its owner. Whatever it is, the memory stays valid until the handle
// is closed.
type HandleState uint8

const (
	// Current is the newest version of its name.
	Current = HandleState(lease.Current)
	// Superseded is a version beside which there is a newer one.
	Superseded = HandleState(lease.Superseded)
	// Withdrawn is a version whose name was taken out of the catalog.
	Withdrawn = HandleState(lease.Withdrawn)
	// Orphaned is a version that no owner knows any more: another owner took the place of the one that had it, or the
	// client was closed. While no owner serves, the state stays what was heard last, and Leased is false.
	Orphaned = HandleState(lease.Orphaned)
)

// String is the state in one word.
func (s HandleState) String() string {
	switch s {
	case Current:
		return "current"
	case Superseded:
		return "superseded"
	case Withdrawn:
		return "withdrawn"
	case Orphaned:
		return "orphaned"
	}
	return fmt.Sprintf("HandleState(%d)", uint8(s))
}

// MarshalText is the state in one word.
func (s HandleState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes. The error is [ErrInvalid].
func (s *HandleState) UnmarshalText(text []byte) (err error) {
	*s, err = parseWord(text, Current, Superseded, Withdrawn, Orphaned)
	return err
}

// Handle is an attached version: a state dict over memory that this process has mapped, and a lease in the owner's
// catalog that says so. The memory is this process's own mapping: it stays valid until Close whatever becomes of the
// owner or the lease. The lease belongs to the connection; after a reconnection to the same owner the client takes it
// again by itself.
//
// A handle that is not closed keeps the version in the owner's memory. When the garbage collector finds one of which
// nothing is used any more, neither itself nor its tensors, the lease goes back with a warning. Where a slice or an
// address of the memory was handed out ([tensor.Data]), which the collector does not see, the lease is kept as long as
// the client lives and counts as a leak ([driver.Leaks]).
type Handle struct {
	lease *lease.Lease
	sd    *module.StateDict
	guard *leakGuard
}

// newHandle takes sd.
func newHandle(a *lease.Lease, sd *module.StateDict) *Handle {
	h := &Handle{lease: a, sd: sd}
	h.guard = newLeakGuard(h, "lease of a version", sd.Storages(), a.Collected)
	return h
}

// StateDict holds the tensors. It is borrowed: valid until Close, and not to be closed by the caller. Clone it to keep
// it longer. The memory is mapped read-only: writing to it kills the process.
func (h *Handle) StateDict() *module.StateDict { return h.sd }

// Name is the name under which it was acquired.
func (h *Handle) Name() string { return h.lease.Name }

// Version is the version that is attached; it never changes.
func (h *Handle) Version() uint64 { return h.lease.Version }

// ServerID names the owner that the version came from.
func (h *Handle) ServerID() string { return h.lease.Server }

// State is how the version stands at its owner, as far as this process has heard, without asking.
func (h *Handle) State() HandleState {
	state, _ := h.lease.State()
	return HandleState(state)
}

// Newest is the newest version of the name that this process has heard of.
func (h *Handle) Newest() uint64 {
	_, newest := h.lease.State()
	return newest
}

// Changed returns a channel that is closed when State, Newest or Leased next changes, or the handle is closed: the loss
// of the owner is noticed at once. Ask for the channel first and for the state afterwards: then no change goes unseen.
func (h *Handle) Changed() <-chan struct{} { return h.lease.Changed() }

// Leased reports whether the owner has a lease of this process for the version at this moment. It is false while the
// connection is away.
func (h *Handle) Leased() bool { return h.lease.Held() }

// Close unmaps the memory and releases the lease. Slices and tensors of the state dict must not be used after it. It
// does not wait for the owner. A second Close is nil.
func (h *Handle) Close() error {
	h.guard.disarm()
	if !h.lease.Release() {
		return nil
	}
	return h.sd.Close()
}

package endpoint

import (
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/module"
)

// HandleState is the state of a handle's version at its owner. In every state, the memory stays valid until the handle
// is closed.
type HandleState uint8

const (
	// Current means that the version is the newest of its name.
	Current HandleState = iota
	// Superseded means that the name has a newer version.
	Superseded
	// Withdrawn means that the name was removed from the catalog.
	Withdrawn
	// Orphaned means that no owner has the version: its owner was replaced, or the client was closed. While no owner
	// serves, the last reported state remains and Leased returns false.
	Orphaned
)

// stateOf returns the state of a leased version.
func stateOf(a *client.Lease) HandleState {
	switch s := a.State(); {
	case s.Orphaned:
		return Orphaned
	case s.Withdrawn:
		return Withdrawn
	case s.Newest > a.Version:
		return Superseded
	}
	return Current
}

// String returns the state as one word.
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

// MarshalText returns the state as one word.
func (s HandleState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the output of MarshalText. It fails with [ErrInvalid].
func (s *HandleState) UnmarshalText(text []byte) (err error) {
	*s, err = parseWord(text, Current, Superseded, Withdrawn, Orphaned)
	return err
}

// Handle is an attached version: a state dict over mapped memory, and a lease in the owner's catalog. The mapping is
// private to this process and stays valid until Close, even if the owner exits or the lease ends. The lease belongs to
// the connection. After a reconnection to the same owner, the client acquires it again.
//
// A handle that is not closed keeps the version in the owner's memory. If the handle and its tensors become
// unreachable, the lease is released with a warning. The garbage collector cannot track slices and addresses of the
// memory ([tensor.Data]). If any were returned, the lease is kept until the client closes and counts as a leak
// ([driver.Leaks]).
type Handle struct {
	lease *client.Lease
	sd    *module.StateDict
	guard *leakGuard
}

// newHandle takes ownership of sd.
func newHandle(a *client.Lease, sd *module.StateDict) *Handle {
	h := &Handle{lease: a, sd: sd}
	h.guard = newLeakGuard(h, "lease of a version", sd.Storages(), a.Collected)
	return h
}

// StateDict returns the tensors. They live until Close of the handle and need no Close; the caller must not close the state
// dict. Alias it to keep it longer. The memory is mapped read-only: writing to it kills the process.
func (h *Handle) StateDict() *module.StateDict { return h.sd }

// Name returns the name of the model.
func (h *Handle) Name() string { return h.lease.Name }

// Version returns the attached version, which never changes.
func (h *Handle) Version() uint64 { return h.lease.Version }

// Digest returns the digest of the whole version as its publishers have computed it ([module.AddDigests]), also if the
// handle has attached one part. It is zero without such digests. [module.Verify] compares it with the bytes of a whole
// version.
func (h *Handle) Digest() module.Digest {
	if h.lease.Part == nil {
		digest, _ := h.sd.ClaimedDigest()
		return digest
	}
	if len(h.lease.Digest) != len(module.Digest{}) {
		return module.Digest{}
	}
	return module.Digest(h.lease.Digest)
}

// ServerID returns the id of the owner that the version came from.
func (h *Handle) ServerID() string { return h.lease.Server }

// State returns the last reported state of the version. It sends no request.
func (h *Handle) State() HandleState { return stateOf(h.lease) }

// Newest returns the newest version of the name that was reported to this process.
func (h *Handle) Newest() uint64 { return h.lease.State().Newest }

// Changed returns a channel that is closed when State, Newest or Leased next changes or the handle is closed. The loss
// of the owner is reported at once. Get the channel before the state to miss no change.
func (h *Handle) Changed() <-chan struct{} { return h.lease.Changed() }

// Leased reports whether the owner currently holds a lease for this handle. It returns false while the client is
// disconnected.
func (h *Handle) Leased() bool { return h.lease.Held() }

// Close unmaps the memory and releases the lease. Slices and tensors of the state dict must not be used afterwards. It
// does not wait for the owner. A second Close returns nil.
func (h *Handle) Close() error {
	h.guard.disarm()
	if !h.lease.Release() {
		return nil
	}
	return h.sd.Close()
}

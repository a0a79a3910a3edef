package tensor

import (
	"fmt"
	"os"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver"
)

var storageIDs atomic.Uint64

// Storage is a counted reference to one [driver.Memory]. Tensors that share bytes share a Storage. Its methods are safe
// for concurrent use.
type Storage struct {
	mem    driver.Memory
	bytes  int64
	id     uint64
	origin *Storage // the storage that counts the references; nil for s itself

	exposed *atomic.Bool // separate, so that cleanups can access it
	shared  bool         // created by Borrow

	refs     atomic.Int64
	readOnly atomic.Pointer[Storage]       // created on first use
	handle   atomic.Pointer[driver.Handle] // without its descriptor; created on first use

	complete atomic.Bool // the memory had all its pages
	version  atomic.Uint64
	lent     bool
	name     string
}

// NewStorage takes ownership of mem and returns a storage with one reference, owned by the caller.
func NewStorage(mem driver.Memory) *Storage {
	s := &Storage{mem: mem, bytes: mem.Bytes(), id: storageIDs.Add(1)}
	switch m := mem.(type) {
	case driver.Mapped:
		s.exposed = m.Exposed()
	case driver.Addressable:
		s.exposed = m.Exposed()
	default:
		s.exposed = new(atomic.Bool)
	}
	s.refs.Store(1)
	return s
}

// NewLentStorage is NewStorage for memory lent by another process. name identifies the memory to its importer for its
// return; empty if it has none.
func NewLentStorage(mem driver.Memory, name string) *Storage {
	s := NewStorage(mem)
	s.lent, s.name = true, name
	return s
}

// Retain adds a reference, released with Close, and returns s. If s is closed it stays closed: its use fails with
// [os.ErrClosed], and so does the additional Close.
func (s *Storage) Retain() *Storage {
	s.retain(1)
	return s
}

// retain adds n references unless the storage is closed.
func (s *Storage) retain(n int64) bool {
	s = s.Origin()
	for {
		refs := s.refs.Load()
		if refs == 0 {
			return false
		}
		if s.refs.CompareAndSwap(refs, refs+n) {
			return true
		}
	}
}

// Close releases one reference. The last one closes the memory and returns its error. Close without a reference returns
// [os.ErrClosed].
func (s *Storage) Close() error {
	s = s.Origin()
	for {
		refs := s.refs.Load()
		if refs == 0 {
			return fmt.Errorf("storage %d: %w", s.id, os.ErrClosed)
		}
		if s.refs.CompareAndSwap(refs, refs-1) {
			if refs == 1 {
				return s.mem.Close()
			}
			return nil
		}
	}
}

// Memory returns the memory of the storage, borrowed: the caller does not close it.
func (s *Storage) Memory() driver.Memory { return s.mem }

// Bytes returns the size of the memory.
func (s *Storage) Bytes() int64 { return s.bytes }

// ID identifies the storage in this process. It is never reused.
func (s *Storage) ID() uint64 { return s.id }

// Refs returns the current number of references; 0 means closed.
func (s *Storage) Refs() int64 { return s.Origin().refs.Load() }

// ReadOnly returns the same storage, with the same memory and references, for users that must not write: writes by
// tensors fail with [driver.ErrReadOnly]. The mapping does not change, so slices of elements and kernels can still
// write. It always returns the same storage, and s itself if s is not writable.
func (s *Storage) ReadOnly() *Storage {
	if !s.Writable() {
		return s
	}
	if s.readOnly.Load() == nil {
		s.readOnly.CompareAndSwap(nil, &Storage{mem: s.mem, bytes: s.bytes, id: s.id, origin: s, exposed: s.exposed})
	}
	return s.readOnly.Load()
}

// Borrow is ReadOnly for one borrower within the process: a new storage for each call, with the same memory and
// references. It becomes unreachable when its borrower has dropped it, and [Storage.Borrowed] reports what this
// borrower exposed.
func (s *Storage) Borrow() *Storage {
	return &Storage{mem: s.mem, bytes: s.bytes, id: s.id, origin: s.Origin(), exposed: new(atomic.Bool), shared: true}
}

// Borrowed serves cleanups of borrowed memory that was not released. While borrower is reachable, a tensor of s may be
// in use. exposed becomes true when a slice ([Data], [RawData]) or an address of the memory was returned, which may be
// in use forever; it does not keep the storage reachable. ok is false if the memory was not lent by [Storage.Borrow].
func (s *Storage) Borrowed() (borrower *Storage, exposed *atomic.Bool, ok bool) {
	if s.shared {
		return s, s.exposed, true
	}
	s = s.Origin()
	return s, s.exposed, s.lent
}

// Origin returns the storage of which [Storage.ReadOnly] or [Storage.Borrow] created s, otherwise s.
func (s *Storage) Origin() *Storage {
	if s.origin != nil {
		return s.origin
	}
	return s
}

// Writable reports whether tensors of the storage may be written.
func (s *Storage) Writable() bool { return s.origin == nil && s.mem.Writable() }

// Shareable returns the handle by which other processes can import the memory, without its descriptor. Later
// calls are free. Its errors are those of Export. The handle's Blob is borrowed.
func (s *Storage) Shareable() (driver.Handle, error) {
	s = s.Origin()
	if h := s.handle.Load(); h != nil {
		return *h, nil
	}
	h, err := s.mem.Handle()
	if err != nil {
		return driver.Handle{}, err
	}
	s.handle.Store(&h)
	return h, nil
}

// Lent reports whether another process lent the memory, and its name; see [NewLentStorage].
func (s *Storage) Lent() (name string, lent bool) {
	s = s.Origin()
	return s.name, s.lent
}

// Version is the content generation; 0 means untracked. After the first [Storage.Touch] equal versions promise equal
// bytes, so that package endpoint can cache results computed from them.
func (s *Storage) Version() uint64 { return s.Origin().version.Load() }

// Touch increments the version, and starts tracking if it was untracked. A program that tracks must call Touch after
// every write that bypasses this package: through [Data] or [RawData], by the device, or by another process. The
// methods of this package call it automatically.
func (s *Storage) Touch() { s.Origin().version.Add(1) }

// Seal refuses all further writes to the memory, including those of this process ([driver.Memory.Seal]). The bytes are then
// final for every process that gets the memory, so package endpoint caches results computed from them for all callers.
// The memory must not be shared yet. A later write to a slice of its elements kills the process. Memory that cannot be
// sealed is a [driver.UnsupportedError].
func (s *Storage) Seal() error { return s.mem.Seal() }

// written calls Touch if the storage is tracked.
func (s *Storage) written() {
	if s.Version() > 0 {
		s.Touch()
	}
}

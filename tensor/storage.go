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
	origin *Storage // whose references count; nil for a storage of its own

	exposed *atomic.Bool // apart, so that cleanups can look at it
	shared  bool         // made by Borrow

	refs     atomic.Int64
	readOnly atomic.Pointer[Storage]       // made when it is first asked for
	handle   atomic.Pointer[driver.Handle] // without its descriptor; made when it is first asked for

	version atomic.Uint64
	lent    bool
	name    string
}

// NewStorage takes mem and returns a storage with one reference, which is the caller's.
func NewStorage(mem driver.Memory) *Storage {
	s := &Storage{mem: mem, bytes: mem.Bytes(), id: storageIDs.Add(1)}
	if m, can := mem.(driver.Exposer); can {
		s.exposed = m.Exposed()
	} else {
		s.exposed = new(atomic.Bool)
	}
	s.refs.Store(1)
	return s
}

// NewLentStorage is NewStorage for memory that another process lent to this one. name is what whoever imported the
// memory knows it by, to give it back by that name, and empty where it has none.
func NewLentStorage(mem driver.Memory, name string) *Storage {
	s := NewStorage(mem)
	s.lent, s.name = true, name
	return s
}

// Retain adds a reference, to be given back with Close, and returns s. A storage that is closed already stays closed:
// what is done with it fails with [os.ErrClosed], and so does its Close.
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

// Close gives one reference back. The last one closes the memory and returns its error. Close without a reference is
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

// Memory is the memory behind the storage, borrowed: the caller does not close it.
func (s *Storage) Memory() driver.Memory { return s.mem }

// Bytes is the size of the memory.
func (s *Storage) Bytes() int64 { return s.bytes }

// ID names the storage in this process. No other storage of the process ever has the same.
func (s *Storage) ID() uint64 { return s.id }

// Refs is the number of references now; 0 means closed.
func (s *Storage) Refs() int64 { return s.Origin().refs.Load() }

// ReadOnly is the same storage, with the same memory and the same references, for users that must not write it:
// what tensors write is refused with [driver.ErrReadOnly]. The memory itself is mapped as it was, so slices of its
// elements and kernels still can. It is always the same one, and s itself where that cannot be written.
func (s *Storage) ReadOnly() *Storage {
	if !s.Writable() {
		return s
	}
	if s.readOnly.Load() == nil {
		s.readOnly.CompareAndSwap(nil, &Storage{mem: s.mem, bytes: s.bytes, id: s.id, origin: s, exposed: s.exposed})
	}
	return s.readOnly.Load()
}

// Borrow is ReadOnly for one borrower within the process: a storage of its own each time, with the same memory and the
// same references. It becomes unreachable when the borrower has forgotten it, whoever else uses the memory, and
// [Storage.Borrowed] knows what this borrower took.
func (s *Storage) Borrow() *Storage {
	return &Storage{mem: s.mem, bytes: s.bytes, id: s.id, origin: s.Origin(), exposed: new(atomic.Bool), shared: true}
}

// Borrowed is for whoever gives borrowed memory back that was forgotten. While borrower is reachable, a tensor of s may
// be in use. exposed is true once somebody has a slice ([Data], [RawData]) or an address of the memory, which may be in
// use for ever; it does not keep the storage reachable. ok is false for memory that belongs to the process and was not
// lent by [Storage.Borrow].
func (s *Storage) Borrowed() (borrower *Storage, exposed *atomic.Bool, ok bool) {
	if s.shared {
		return s, s.exposed, true
	}
	s = s.Origin()
	return s, s.exposed, s.lent
}

// Origin is the storage that [Storage.ReadOnly] or [Storage.Borrow] made s of; others are their own.
func (s *Storage) Origin() *Storage {
	if s.origin != nil {
		return s.origin
	}
	return s
}

// Writable reports whether tensors of the storage may be written.
func (s *Storage) Writable() bool { return s.origin == nil && s.mem.Writable() }

// Shareable tells how other processes can have the memory: by the handle that it returns, without the descriptor that
// may belong to it. Memory that is no [driver.Describer] is exported for the first answer; the others cost nothing. Its
// errors are those of Export. The handle's Blob is borrowed.
func (s *Storage) Shareable() (driver.Handle, error) {
	s = s.Origin()
	if h := s.handle.Load(); h != nil {
		return *h, nil
	}
	h, err := describe(s.mem)
	if err != nil {
		return driver.Handle{}, err
	}
	s.handle.Store(&h)
	return h, nil
}

// describe is how memory is exported, without its descriptor.
func describe(mem driver.Memory) (driver.Handle, error) {
	if d, ok := mem.(driver.Describer); ok {
		return d.Describe()
	}
	h, err := mem.Export()
	if err != nil {
		return driver.Handle{}, err
	}
	err = h.Close()
	h.File = nil
	return h, err
}

// Lent reports whether another process lent the memory, and by which name; see [NewLentStorage].
func (s *Storage) Lent() (name string, lent bool) {
	s = s.Origin()
	return s.name, s.lent
}

// Version is the number of the bytes that the storage has now. 0, which it begins with, says nothing. From the first
// [Storage.Touch] on it is a promise: as long as the version is the same, so are the bytes, which lets the endpoint
// package cache what was made of them.
func (s *Storage) Version() uint64 { return s.Origin().version.Load() }

// Touch says that the bytes are others from here on, and begins with the promise that [Storage.Version] makes, if it
// was not made before. Who makes it calls Touch whenever the bytes were written by other means than the methods of this
// package: through [Data] or [RawData], by the device, or by another process. The methods that write do it by
// themselves.
func (s *Storage) Touch() { s.Origin().version.Add(1) }

// Seal refuses all writes to the memory, also those of this process ([driver.Sealer]): the bytes are final, and known
// by that to every process that gets the memory, so the endpoint package caches what is made of them for all callers.
// It is for memory that no other process has yet. A write to a slice of its elements then kills the process. Memory
// that cannot be sealed is an [driver.UnsupportedError].
func (s *Storage) Seal() error {
	sealer, ok := s.mem.(driver.Sealer)
	if !ok {
		return &driver.UnsupportedError{Feature: "closing memory of " + s.mem.Device().Info().String() + " against all writers", Requires: "host memory"}
	}
	return sealer.Seal()
}

// written is Touch where the promise was made.
func (s *Storage) written() {
	if s.Version() > 0 {
		s.Touch()
	}
}

package tensor

import (
	"fmt"
	"os"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/driver"
)

var storageIDs atomic.Uint64

// Storage is a counted reference to one [driver.Memory]. Tensors that share bytes share a Storage. Its methods are safe for
// concurrent use.
type Storage struct {
	mem   driver.Memory
	bytes int64
	id    uint64
	refs  atomic.Int64
}

// NewStorage takes mem and returns a storage with one reference, which is the caller's.
func NewStorage(mem driver.Memory) *Storage {
	s := &Storage{mem: mem, bytes: mem.Bytes(), id: storageIDs.Add(1)}
	s.refs.Store(1)
	return s
}

// Retain adds a reference, to be given back with Close, and returns s. A storage that is closed already stays closed: what
// is done with it fails with [os.ErrClosed], and so does its Close.
func (s *Storage) Retain() *Storage {
	s.retain(1)
	return s
}

// retain adds n references unless the storage is closed.
func (s *Storage) retain(n int64) bool {
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
func (s *Storage) Refs() int64 { return s.refs.Load() }

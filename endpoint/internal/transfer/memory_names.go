package transfer

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// The cache key of a call includes the names of the memory in its arguments. A name identifies memory whose bytes do
// not change while the name is valid. There are three kinds of names:
//
// The server names immutable memory that it lent: published versions, and results of cached endpoints (MemoryNames). A
// client that passes such memory back sends its name. Names are random and cannot be guessed, so a client that sends
// one has received the memory. The function gets the server's own memory of that name, not what the client sent. A
// false name therefore yields the correct result of another call, and cannot corrupt the cache. Results under these
// names are shared by all sessions.
//
// The session, the client's number of the storage and its version name memory whose versions a client counts
// (tensor.Storage.Touch). The server cannot verify the version, so results under these names are used only for calls of
// the same session.
//
// The system names memory that it protects from all writes (driver.Description). CUDA has no such memory, because each
// importer chooses whether its mapping is writable.
//
// All other memory has no name, and a call with it always runs.

// MemoryNames holds the names of immutable storages that a server has lent.
type MemoryNames struct {
	mu        sync.RWMutex
	byName    map[string]*namedStorage
	byStorage map[*tensor.Storage]*namedStorage
}

// namedStorage is a storage with a name.
type namedStorage struct {
	name    string
	storage *tensor.Storage // open while it is listed
	uses    int             // number of versions and results that contain it
	written bool            // a function received it for writing, so its bytes may have changed
}

// Add names a storage if it has no name. It borrows s until Remove was called as often as Add.
func (l *MemoryNames) Add(s *tensor.Storage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byStorage == nil {
		l.byName, l.byStorage = map[string]*namedStorage{}, map[*tensor.Storage]*namedStorage{}
	}
	s = s.Origin()
	n := l.byStorage[s]
	if n == nil {
		n = &namedStorage{name: NewID(), storage: s}
		l.byName[n.name], l.byStorage[s] = n, n
	}
	n.uses++
}

// Remove undoes one Add.
func (l *MemoryNames) Remove(s *tensor.Storage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s = s.Origin()
	n := l.byStorage[s]
	if n.uses--; n.uses == 0 {
		delete(l.byStorage, s)
		delete(l.byName, n.name)
	}
}

// Name returns the name of a storage, or "" if it has none.
func (l *MemoryNames) Name(s *tensor.Storage) string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if n := l.byStorage[s.Origin()]; n != nil && !n.written {
		return n.name
	}
	return ""
}

// find returns the storage with that name, or nil. The caller releases its reference.
func (l *MemoryNames) find(name string) *tensor.Storage {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if n := l.byName[name]; n != nil && !n.written {
		return n.storage.Retain()
	}
	return nil
}

// Invalidate invalidates the name of a storage, if it is known, because a function may write to the storage.
func (l *MemoryNames) Invalidate(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.byName[name]; n != nil {
		n.written = true
	}
}

// Borrow returns the memory that the server lent under a name, for use as an argument, or nil if the name is unknown.
// The memory is mapped read-only if its kind can be mapped twice by its owner. The caller closes it.
func (l *MemoryNames) Borrow(name string) *tensor.Storage {
	s := l.find(name)
	switch {
	case s == nil:
		return nil
	case s.Refs() == 0: // it was closed before the reference was added
		return nil
	}
	again, err := remap(s)
	if err != nil { // CUDA's legacy memory cannot be imported by the process that exported it
		return s.ReadOnly()
	}
	s.Close()
	return again
}

// remap maps the memory of a storage again, read-only.
func remap(s *tensor.Storage) (*tensor.Storage, error) {
	h, err := s.Memory().Export()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	mem, err := s.Memory().Device().Import(h, driver.ImportOptions{})
	if err != nil {
		return nil, err
	}
	return tensor.NewStorage(mem), nil
}

// HasStorage reports whether the list contains s or another view of it.
func HasStorage(list []*tensor.Storage, s *tensor.Storage) bool {
	return slices.ContainsFunc(list, func(other *tensor.Storage) bool { return other.Origin() == s.Origin() })
}

// LentKey returns the cache key of memory with a name.
func LentKey(name string) string { return "lent:" + name }

// SessionKey returns the cache key of a version of a client's memory.
func SessionKey(session, storage, version uint64) string {
	return fmt.Sprintf("session:%d:%d:%d", session, storage, version)
}

// lender identifies the memory that the owner at a socket calls name. It includes the socket so that names from one
// owner are not sent to another.
func lender(socket, name string) string { return socket + "\x00" + name }

// AddNames adds to the handles of an export the names that the owner at a socket, or this client, has for the storages.
func (out *Export) AddNames(storages []*tensor.Storage, socket string) {
	for i, s := range storages {
		h := &out.Handles[i]
		if h.Inline() {
			continue
		}
		name, _ := s.Lent()
		if name, ok := strings.CutPrefix(name, lender(socket, "")); ok {
			h.Name = name
		}
		if v := s.Version(); v > 0 {
			h.Storage, h.Version = s.ID(), v
		}
	}
}

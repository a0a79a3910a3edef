package transfer

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// What a call's result is cached under includes the memory of its arguments, by names that keep two promises: whoever
// has the same name has the same memory, and its bytes are the same as long as the name is. There are three kinds.
//
// Memory that this server lent and that nobody writes any more, which are published versions and the results of
// endpoints that are cached, has a name that the server gave it (MemoryNames). A client that passes it back sends the
// name along. It need not be believed: the name cannot be guessed, so a client that has it was given the memory, and
// what the function gets is the server's own memory of that name, not what came with the claim. So a false claim gives
// the true result of another call, to its caller and to all others alike. Of such names all sessions get the same
// results.
//
// Memory that a client writes and counts the versions of (tensor.Storage.Touch) is named by the session, the client's
// number for the storage and the version. All of that is the client's word and nobody could check it, so it counts for
// the calls of its own session only.
//
// Memory that the system lets nobody write any more has a name of the system's (driver.Identifier). On CUDA there is
// none such: whether a mapping can be written is each importer's choice.
//
// All other memory has no name, and a call with it runs each time.

// MemoryNames are the storages that a server lent and that nobody writes any more.
type MemoryNames struct {
	mu     sync.RWMutex
	byName map[string]*namedStorage
	of     map[*tensor.Storage]*namedStorage
}

// namedStorage is one of them.
type namedStorage struct {
	name    string
	storage *tensor.Storage // alive while it is listed
	uses    int             // versions and results that it is part of
	written bool            // somebody was allowed to write it after all
}

// Add gives a storage a name, if it has none. It borrows s until the same number of removes.
func (l *MemoryNames) Add(s *tensor.Storage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.byName, l.of = map[string]*namedStorage{}, map[*tensor.Storage]*namedStorage{}
	}
	s = s.Origin()
	n := l.of[s]
	if n == nil {
		n = &namedStorage{name: NewID(), storage: s}
		l.byName[n.name], l.of[s] = n, n
	}
	n.uses++
}

// Remove takes one add back.
func (l *MemoryNames) Remove(s *tensor.Storage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s = s.Origin()
	n := l.of[s]
	if n.uses--; n.uses == 0 {
		delete(l.of, s)
		delete(l.byName, n.name)
	}
}

// Name is the name of a storage; empty where it has none.
func (l *MemoryNames) Name(s *tensor.Storage) string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if n := l.of[s.Origin()]; n != nil && !n.written {
		return n.name
	}
	return ""
}

// find returns the storage of that name with a reference that the caller gives back; nil where there is none.
func (l *MemoryNames) find(name string) *tensor.Storage {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if n := l.byName[name]; n != nil && !n.written {
		return n.storage.Retain()
	}
	return nil
}

// Writing notes that a function may write to the storage of that name, if there is one: it does not keep its bytes any
// more.
func (l *MemoryNames) Writing(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.byName[name]; n != nil {
		n.written = true
	}
}

// Borrow returns the memory that the server lent under a name, as an argument has it: mapped for reading only, where
// the kind of memory allows its owner to map it again. Nil where no memory has the name. The caller closes it.
func (l *MemoryNames) Borrow(name string) *tensor.Storage {
	s := l.find(name)
	switch {
	case s == nil:
		return nil
	case s.Refs() == 0: // it was closed before it got here
		return nil
	}
	again, err := remap(s)
	if err != nil { // legacy memory of CUDA cannot be imported by its own process
		return s.ReadOnly()
	}
	s.Close()
	return again
}

// remap maps the memory of a storage once more, for reading.
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

// HasStorage reports whether s or another view of it is in the list.
func HasStorage(list []*tensor.Storage, s *tensor.Storage) bool {
	return slices.ContainsFunc(list, func(other *tensor.Storage) bool { return other.Origin() == s.Origin() })
}

// LentKey is the part of a cache key that stands for memory with a name.
func LentKey(name string) string { return "lent:" + name }

// SessionKey is the part of a cache key that stands for memory of a client that counts its versions.
func SessionKey(session, storage, version uint64) string {
	return fmt.Sprintf("session:%d:%d:%d", session, storage, version)
}

// lender is how a client knows the memory that the owner behind a socket calls name. The socket is part of it: what one
// owner says is not repeated to another.
func lender(socket, name string) string { return socket + "\x00" + name }

// Claim tells the owner behind a socket what it, or this client, calls the storages of an export.
func (out *Export) Claim(storages []*tensor.Storage, socket string) {
	for i, s := range storages {
		h := &out.Handles[i]
		name, _ := s.Lent()
		if name, ok := strings.CutPrefix(name, lender(socket, "")); ok {
			h.Name = name
		}
		if v := s.Version(); v > 0 {
			h.Storage, h.Version = s.ID(), v
		}
	}
}

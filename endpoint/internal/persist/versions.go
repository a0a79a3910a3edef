// Package persist records the published versions of an owner outside of its process, so that the next owner serves them
// without loading them again.
//
// A [Store] holds descriptors: one for each storage of a version, and one for the journal. The journal is a memory file
// that the owner writes in place. Publishing appends one entry, which survives the owner as soon as the write has
// returned. The store does not read the memory.
package persist

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Store holds descriptors by name, also after the process that stored them has ended. Its methods are safe for
// concurrent use, and each method has a time limit.
type Store interface {
	// Put stores a duplicate of f under a new name of letters, digits and dots. It borrows f. When it returns nil, the
	// store has the descriptor.
	Put(name string, f *os.File) error
	// Remove closes the descriptors of the names. Unknown names are no error.
	Remove(names ...string) error
	// Stored returns duplicates of all descriptors. The caller owns them.
	Stored() (map[string]*os.File, error)
}

// FileStore is a store that is itself the memory of the journal, and has copies of other memory.
type FileStore interface {
	Store
	// Create returns a new file. After Put it is part of the store, with all bytes that are written into it later. The
	// caller owns it.
	Create() (*os.File, error)
	// Names returns the names of all files.
	Names() ([]string, error)
	// Open returns the files of journals and copies of other memory, by name. The caller owns them.
	Open(names ...string) (map[string]*os.File, error)
	// Has reports whether f is the file of the name, not a copy of it.
	Has(name string, f *os.File) bool
}

// Versions records the versions of one owner in a store. Its methods are safe for concurrent use. Published, Withdrawn and
// Freed do not wait for the store.
type Versions struct {
	store Store
	log   *slog.Logger
	id    string // of the catalog

	mu         sync.Mutex
	journal    *journal
	generation uint64   // of the journal
	newest     uint64   // highest generation that was used, also by an abandoned journal
	next       *journal // its successor while it is not stored yet; every entry is written to both
	lastID     uint64
	live       map[uint64]*kept
	names      map[string]*name
	empty      int    // names without live versions
	floor      uint64 // the highest number of names that were removed
	garbage    []string
	working    bool
	closed     bool
	work       sync.WaitGroup // the goroutine that removes descriptors and compacts the journal
}

// kept is a version in the journal.
type kept struct {
	name      string
	at        placed
	digests   placed // of the entry with digests; zero without one
	files     int
	withdrawn bool
}

// placed is where an entry is in the journal, and in its successor while there is one.
type placed struct{ at, next place }

// name is the state of a published name.
type name struct {
	last uint64 // the highest number used so far
	live int    // versions that can be adopted
}

// rememberedNames is the number of names without versions whose highest number is kept, as in package catalog.
const rememberedNames = 1024

// Version is a version as it is kept. The fields describe it to the next owner.
type Version struct {
	Name      string             // published name
	Number    uint64             // version number
	At        int64              // time of publication, nanoseconds since 1970, UTC
	Publisher message.Origin     // publisher and source
	SourceID  string             // identifies the content of the source; may be empty
	Digests   bool               // digests were requested
	Retain    *message.Retention // of the name; nil for that of the owner
	Parts     int                // number of parts that it is joined from; 0 for a whole version
	Manifest  []byte             // encoded [message.Manifest]
	Handles   []message.Handle   // handles of its storages
}

// Adopted is a version that an earlier owner published. The receiver owns the files.
type Adopted struct {
	Version
	ID        uint64     // names the memory in the store
	Files     []*os.File // descriptors that the handles refer to
	Err       error      // why the memory cannot be opened; Files is then empty
	Withdrawn bool       // its name was withdrawn while it had readers
	Tensors   []byte     // computed digests of the tensors; nil for none
}

// Numbers holds the numbers that earlier owners used, also for versions that are gone.
type Numbers struct {
	Last  map[string]uint64 // highest number of a name
	Floor uint64            // the highest number of all other names
}

// Catalog returns the id of the kept catalog, which each owner that adopts it keeps.
func (k *Versions) Catalog() string { return k.id }

// Put stores the memory of a version before it is published, and returns its id. It borrows the files.
func (k *Versions) Put(files []*os.File) (id uint64, err error) {
	k.mu.Lock()
	k.lastID++
	id = k.lastID
	k.mu.Unlock()
	for i, f := range files {
		if err := k.store.Put(fileName(id, i), f); err != nil {
			k.Discard(id, i+1) // the store may have the last one in spite of the error
			return 0, fmt.Errorf("keep the memory: %w", err)
		}
	}
	return id, nil
}

// Discard removes the memory of a version that was not published.
func (k *Versions) Discard(id uint64, files int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.discardLocked(id, files)
	k.wakeLocked()
}

func (k *Versions) discardLocked(id uint64, files int) {
	for i := range files {
		k.garbage = append(k.garbage, fileName(id, i))
	}
}

// Published records a version whose memory is stored as id. An owner that starts after it returned adopts the version.
func (k *Versions) Published(id uint64, v Version, files int) error {
	e := entry{
		Kind: entryPublished, ID: id, Name: v.Name, Version: v.Number, At: v.At, Publisher: v.Publisher, SourceID: v.SourceID,
		Digests: v.Digests, Retain: v.Retain, Parts: v.Parts, Manifest: v.Manifest, Handles: v.Handles, Files: files,
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	at, err := k.appendLocked(e)
	if err != nil {
		return err
	}
	k.addLocked(e, at)
	return nil
}

// Withdrawn records that a name was withdrawn. Its versions stay recorded for their readers until [Versions.Freed]. If the
// name has no versions, Withdrawn returns nil.
func (k *Versions) Withdrawn(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var of []*kept
	for _, v := range k.live {
		if v.name == name && !v.withdrawn {
			of = append(of, v)
		}
	}
	if len(of) == 0 {
		return nil
	}
	if _, err := k.appendLocked(entry{Kind: entryWithdrawn, Name: name}); err != nil {
		return err
	}
	for _, v := range of {
		v.withdrawn = true
	}
	return nil
}

// Digested records the digests of the tensors of a version, 32 bytes each, so that the next owner does not compute them.
func (k *Versions) Digested(id uint64, tensors []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	v := k.live[id]
	if v == nil || k.closed {
		return nil
	}
	at, err := k.appendLocked(entry{Kind: entryDigests, ID: id, Tensors: tensors})
	if err == nil {
		v.digests = at
	}
	return err
}

// Freed records that the memory of a version is no longer needed, and removes it from the store. If the journal cannot be
// written, the next owner finds a version without memory and drops it.
func (k *Versions) Freed(id uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v := k.live[id]
	if v == nil { // dropped before
		return
	}
	if _, err := k.appendLocked(entry{Kind: entryFreed, ID: id}); err != nil {
		if errors.Is(err, status.ErrServerClosing) {
			return
		}
		k.log.Warn("the journal does not record that a version was freed; the next owner will report it as lost", "name", v.name, "error", err)
	}
	k.discardLocked(id, v.files)
	k.dropLocked(id)
	k.wakeLocked()
}

// appendLocked writes an entry to the journal, and before that to its successor if there is one. After an error no
// journal has the entry that the next owner reads.
func (k *Versions) appendLocked(e entry) (p placed, err error) {
	if k.closed {
		return p, status.ErrServerClosing
	}
	if err := k.reserveLocked(e); err != nil {
		return p, err
	}
	if p.next, err = k.appendNextLocked(e); err != nil {
		return p, err
	}
	if p.at, err = k.journal.append(e); err != nil {
		return p, errors.Join(err, k.abandonNextLocked(err)) // it has an entry more
	}
	return p, nil
}

// appendNextLocked writes an entry to the successor of the journal, or abandons that. If neither is possible, the store may
// have a successor without the entry, so the change must not happen.
func (k *Versions) appendNextLocked(e entry) (at place, err error) {
	if k.next == nil {
		return at, nil
	}
	if at, err = k.next.append(e); err != nil {
		return at, k.abandonNextLocked(err)
	}
	return at, nil
}

// abandonNextLocked abandons the successor of the journal because of an error.
func (k *Versions) abandonNextLocked(cause error) error {
	if k.next == nil {
		return nil
	}
	k.log.Warn("the journal of kept versions is not compacted", "error", cause)
	if err := k.next.abandon(); err != nil {
		return errors.Join(cause, err)
	}
	k.next = nil
	return nil
}

// Withdrawals and freed versions must be recorded although the store is full, because they make room. Space for them is
// allocated behind the journal's end when a version is published.
const (
	reservedBytes      = 4096 // for all names
	reservedForVersion = 512  // the entries that end a version
)

// reserveLocked allocates space for an entry and for the end of all versions. It fails if a publication has no room.
func (k *Versions) reserveLocked(e entry) error {
	if e.Kind != entryPublished {
		return nil
	}
	n := int64(len(e.Manifest)) + 1024*int64(1+len(e.Handles)) + reservedBytes + reservedForVersion*int64(1+len(k.live))
	if err := k.journal.reserve(n); err != nil {
		return fmt.Errorf("the journal has no room for a version: %w", err)
	}
	return nil
}

func (k *Versions) addLocked(e entry, at placed) {
	k.live[e.ID] = &kept{name: e.Name, at: at, files: e.Files}
	n := k.nameLocked(e.Name)
	if n.live == 0 {
		k.empty--
	}
	n.last, n.live = max(n.last, e.Version), n.live+1
}

// nameLocked returns the state of a name, which it creates.
func (k *Versions) nameLocked(text string) *name {
	n := k.names[text]
	if n == nil {
		n = new(name)
		k.names[text] = n
		k.empty++
	}
	return n
}

// dropLocked removes a version. If too many names have no versions, they are removed and the floor replaces their numbers.
func (k *Versions) dropLocked(id uint64) {
	v := k.live[id]
	if v == nil {
		return
	}
	delete(k.live, id)
	n := k.names[v.name]
	if n.live--; n.live > 0 {
		return
	}
	if k.empty++; k.empty <= rememberedNames {
		return
	}
	for text, n := range k.names {
		if n.live == 0 {
			k.floor = max(k.floor, n.last)
			delete(k.names, text)
		}
	}
	k.empty = 0
}

// Close stops recording changes. The store and the journal stay as they are for the next owner. A second Close returns nil.
func (k *Versions) Close() error {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.work.Wait()
	if err := k.journal.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

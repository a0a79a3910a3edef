package persist

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"sync"
)

// Files is a store in this process. An owner without another store hands its versions to a successor in it.
type Files struct {
	mu     sync.Mutex
	stored map[string]*os.File
}

// Put implements Store.
func (s *Files) Put(name string, f *os.File) error {
	own, err := Duplicate(f)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stored == nil {
		s.stored = map[string]*os.File{}
	}
	if before := s.stored[name]; before != nil {
		before.Close()
	}
	s.stored[name] = own
	return nil
}

// Remove implements Store.
func (s *Files) Remove(names ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if f := s.stored[name]; f != nil {
			delete(s.stored, name)
			f.Close()
		}
	}
	return nil
}

// Stored implements Store.
func (s *Files) Stored() (map[string]*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]*os.File{}
	for name, f := range s.stored {
		own, err := Duplicate(f)
		if err != nil {
			CloseFiles(out)
			return nil, err
		}
		out[name] = own
	}
	return out, nil
}

// Close closes all descriptors.
func (s *Files) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	CloseFiles(s.stored)
	s.stored = nil
	return nil
}

// CloseFiles closes all files.
func CloseFiles(files map[string]*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// New returns a Versions with an empty journal that replaces others in the store, which has the given names. id is that of the
// catalog, 32 hexadecimal digits. The next owner adopts the new journal after [Versions.Store].
func New(store Store, id string, log *slog.Logger, names []string) (*Versions, error) {
	b, err := hex.DecodeString(id)
	if err != nil || len(b) != idBytes {
		return nil, fmt.Errorf("catalog id %q: want %d hexadecimal digits", id, 2*idBytes)
	}
	k := &Versions{store: store, log: log, id: id, live: map[uint64]*kept{}, names: map[string]*name{}}
	k.scan(names)
	// A successor that failed may have used further numbers in a store that does not list them.
	k.newest, k.lastID = k.newest+skipped, k.lastID+skipped
	k.generation = k.newest
	if k.journal, err = createJournal(store, [idBytes]byte(b)); err != nil {
		return nil, err
	}
	return k, nil
}

// skipped is the number of generations and ids that a failed successor may have used.
const skipped = 1 << 20

// Store puts the journal of [New] into the store.
func (k *Versions) Store() error { return k.store.Put(journalName(k.generation), k.journal.file) }

// Names returns the names of the recorded descriptors in the store.
func (k *Versions) Names() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	names := []string{journalName(k.generation)}
	for id, v := range k.live {
		names = append(names, FileNames(id, v.files)...)
	}
	return names
}

// Number records the highest number of a name without versions. An empty name sets that of all unknown names.
func (k *Versions) Number(name string, last uint64) error {
	e := entry{Kind: entryNumber, Name: name, Version: last}
	if name == "" {
		e.Kind = entryFloor
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.appendLocked(e)
	return err
}

// Release stops recording and releases the lock on the journal, so that a successor in another process can adopt it. It
// returns a duplicate of the journal and its name in the store. The caller owns it. Afterwards only Close may be called.
func (k *Versions) Release() (name string, journal *os.File, err error) {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.work.Wait()
	if journal, err = Duplicate(k.journal.file); err != nil {
		return "", nil, err
	}
	// The lock belongs to the process. Closing the duplicate here would release it as well.
	if err := unlock(k.journal.file); err != nil {
		journal.Close()
		return "", nil, err
	}
	return journalName(k.generation), journal, nil
}

// FileNames returns the names of the descriptors of a version in the store.
func FileNames(id uint64, files int) []string {
	names := make([]string, files)
	for i := range names {
		names[i] = fileName(id, i)
	}
	return names
}

// Handed is the store of a successor: the descriptors that its predecessor has passed, and the successor's own store. If
// there is an own store, it contains exactly the passed descriptors after Stored.
type Handed struct {
	// Own is the store of the successor; nil for none.
	Own Store
	// Files are the descriptors from the predecessor. Stored returns them to its caller. A duplicate that is closed later would
	// release the lock on the journal.
	Files map[string]*os.File
}

// Put implements Store.
func (h *Handed) Put(name string, f *os.File) error {
	if h.Own == nil {
		return nil
	}
	return h.Own.Put(name, f)
}

// PutNew stores a descriptor under a new name.
func (h *Handed) PutNew(name string, f *os.File) error {
	if h.Own == nil {
		return nil
	}
	return putNew(h.Own, name, f)
}

// Forget makes the own store release its descriptors.
func (h *Handed) Forget() {
	if h.Own != nil {
		forget(h.Own)
	}
}

// Remove implements Store.
func (h *Handed) Remove(names ...string) error {
	if h.Own == nil {
		return nil
	}
	return h.Own.Remove(names...)
}

// Stored implements Store.
func (h *Handed) Stored() (map[string]*os.File, error) {
	passed := h.Files
	h.Files = nil
	if h.Own == nil {
		return passed, nil
	}
	replace := h.replace
	if s := fileStore(h.Own); s != nil {
		replace = func(with map[string]*os.File) error { return replaceFiles(s, with) }
	}
	if err := replace(passed); err != nil {
		CloseFiles(passed)
		return nil, err
	}
	return passed, nil
}

// fileStore returns the store of files that s is, or that a successor has; nil for another store.
func fileStore(s Store) FileStore {
	if h, ok := s.(*Handed); ok {
		s = h.Own
	}
	files, _ := s.(FileStore)
	return files
}

// Names returns the names in a store. Some stores return each name only once.
func Names(store Store) ([]string, error) {
	if h, ok := store.(*Handed); ok {
		store = h.Own
	}
	if s, ok := store.(interface{ Names() ([]string, error) }); ok {
		return s.Names()
	}
	stored, err := store.Stored()
	defer CloseFiles(stored)
	return slices.Collect(maps.Keys(stored)), err
}

// replaceFiles makes a store of files contain exactly the given descriptors. If it has the journal, it is the predecessor's
// store too, and files with the same names are copies of the same memory. Otherwise it gets a copy of the journal, which
// replaces the given one.
func replaceFiles(store FileStore, with map[string]*os.File) error {
	before, err := store.Names()
	if err != nil {
		return err
	}
	shared := false
	for name, f := range with {
		shared = shared || isJournal(name) && store.Has(name, f)
	}
	present := map[string]bool{}
	var others []string
	for _, name := range before {
		if present[name] = shared && with[name] != nil; !present[name] {
			others = append(others, name)
		}
	}
	if err := store.Remove(others...); err != nil {
		return err
	}
	journals := []string{} // last, because they refer to the rest
	for name, f := range with {
		if isJournal(name) {
			journals = append(journals, name)
		} else if !present[name] {
			if err := store.Put(name, f); err != nil {
				return fmt.Errorf("keep what the predecessor has handed over: %w", err)
			}
		}
	}
	for _, name := range journals {
		if present[name] {
			continue
		}
		own, err := copyJournal(store, name, with[name])
		if err != nil {
			return fmt.Errorf("keep the journal that the predecessor has handed over: %w", err)
		}
		with[name].Close()
		with[name] = own
	}
	return nil
}

// copyJournal stores a copy of a journal. The caller owns the returned file of the store.
func copyJournal(store FileStore, name string, journal *os.File) (*os.File, error) {
	own, err := store.Create()
	if err != nil {
		return nil, err
	}
	if _, err = io.Copy(own, io.NewSectionReader(journal, 0, math.MaxInt64)); err == nil {
		err = store.Put(name, own)
	}
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	return own, nil
}

// replace makes the own store contain exactly the given descriptors.
func (h *Handed) replace(with map[string]*os.File) error {
	own, err := h.Own.Stored()
	if err != nil {
		return err
	}
	defer CloseFiles(own)
	var others []string
	for name, f := range own {
		if p := with[name]; p == nil || !same(f, p) {
			others = append(others, name)
		}
	}
	if len(others) > 0 {
		if err := h.Own.Remove(others...); err != nil {
			return err
		}
		for _, name := range others {
			own[name].Close()
			delete(own, name)
		}
	}
	for name, f := range with {
		if own[name] == nil {
			if err := h.Own.Put(name, f); err != nil {
				return fmt.Errorf("keep what the predecessor has handed over: %w", err)
			}
		}
	}
	return nil
}

// same reports whether two descriptors refer to the same file.
func same(a, b *os.File) bool {
	x, err := a.Stat()
	if err != nil {
		return false
	}
	y, err := b.Stat()
	return err == nil && os.SameFile(x, y)
}

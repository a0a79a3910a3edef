package persist

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// Open reads what an earlier owner has left in the store, or begins an empty journal if the store holds nothing. Versions
// are sorted by name and number. It fails with [status.ErrInUse] if another process uses the journal. If it fails, it has
// changed nothing in the store.
func Open(store Store, log *slog.Logger) (k *Versions, adopted []Adopted, numbers Numbers, err error) {
	const attempts = 10 // another owner may remove files that were listed
	for range attempts {
		if k, adopted, numbers, err = openOnce(store, log); !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if err != nil {
		forget(store)
	}
	return k, adopted, numbers, err
}

// forget makes a store release its own descriptors, which it would store again.
func forget(store Store) {
	if s, ok := store.(interface{ Forget() }); ok {
		s.Forget()
	}
}

func openOnce(store Store, log *slog.Logger) (_ *Versions, _ []Adopted, _ Numbers, err error) {
	k := &Versions{store: store, log: log, live: map[uint64]*kept{}, names: map[string]*name{}}
	c, err := contentsOf(store)
	if err != nil {
		return nil, nil, Numbers{}, err
	}
	defer func() {
		CloseFiles(c.open)
		if err != nil && k.journal != nil {
			k.journal.file.Close()
		}
	}()
	versions, err := k.open(c)
	if err != nil {
		return nil, nil, Numbers{}, err
	}
	failed, err := k.loadVersions(versions, c)
	if err != nil {
		return nil, nil, Numbers{}, err
	}
	k.id = hex.EncodeToString(k.journal.id[:])
	adopted := k.claim(versions, c, failed)
	numbers := Numbers{Last: map[string]uint64{}, Floor: k.floor}
	for n, state := range k.names {
		numbers.Last[n] = state.last
	}
	k.sweep(c)
	return k, adopted, numbers, nil
}

// contents are the descriptors in a store. Files of a [FileStore] are opened by load, because opening copies them.
type contents struct {
	files FileStore       // nil for a store of descriptors
	names map[string]bool // of all descriptors that are not claimed
	open  map[string]*os.File
}

func contentsOf(store Store) (c *contents, err error) {
	c = &contents{names: map[string]bool{}, open: map[string]*os.File{}}
	var names []string
	if files, ok := store.(FileStore); ok {
		c.files = files
		names, err = files.Names()
	} else if c.open, err = store.Stored(); err == nil {
		names = slices.Collect(maps.Keys(c.open))
	}
	for _, n := range names {
		c.names[n] = true
	}
	return c, err
}

// load opens the files of the names.
func (c *contents) load(names []string) error {
	if c.files == nil || len(names) == 0 {
		return nil
	}
	opened, err := c.files.Open(names...)
	if err != nil {
		return err
	}
	maps.Copy(c.open, opened)
	return nil
}

// claim returns the open file of a name, which the caller then owns.
func (c *contents) claim(name string) *os.File {
	f := c.open[name]
	delete(c.open, name)
	delete(c.names, name)
	return f
}

// open finds the newest journal in the store and reads it, or creates the first one. It skips journals that were abandoned
// before they replaced another one.
func (k *Versions) open(c *contents) (map[uint64]entry, error) {
	generations := k.scan(slices.Collect(maps.Keys(c.names)))
	for _, k.generation = range slices.Backward(generations) {
		name := journalName(k.generation)
		if err := c.load([]string{name}); err != nil {
			return nil, err
		}
		if err := lock(c.open[name]); err != nil {
			return nil, err
		}
		versions := map[uint64]entry{}
		j, err := readJournal(c.open[name], func(e entry, at place) error {
			k.replay(e, at, versions)
			return nil
		})
		if errors.Is(err, errAbandoned) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the kept catalog: %w", err)
		}
		k.journal = j
		c.claim(name)
		return versions, k.checkNewest()
	}
	if k.lastID > 0 {
		return nil, errWithoutJournal
	}
	var id [idBytes]byte
	rand.Read(id[:]) // never fails
	return nil, k.create(id)
}

// errWithoutJournal means that the store has the memory of versions but no journal of them.
var errWithoutJournal = fmt.Errorf("%w: the store holds the memory of versions without their journal, which another process may be replacing; "+
	"to begin without these versions, end the keeper or remove the files of the directory", status.ErrInUse)

// checkNewest fails with [status.ErrInUse] if the store has got a newer journal since it was listed. Another process then
// uses the catalog: it has released its lock on the journal that was locked here.
func (k *Versions) checkNewest() error {
	s, ok := k.store.(interface{ Names() ([]string, error) })
	if !ok { // only one process at a time can read such a store
		return nil
	}
	names, err := s.Names()
	if err != nil {
		return err
	}
	before := k.newest
	if k.scan(names); k.newest != before {
		return fmt.Errorf("%w: another process has replaced the kept catalog", status.ErrInUse)
	}
	return nil
}

// scan returns the generations of the journals among names in the store, sorted, and finds the highest one and the highest
// id of a version.
func (k *Versions) scan(names []string) (generations []uint64) {
	for _, n := range names {
		if g, ok := strings.CutPrefix(n, "j"); ok {
			if generation, err := strconv.ParseUint(g, 10, 64); err == nil && journalName(generation) == n {
				generations = append(generations, generation)
				k.newest = max(k.newest, generation)
			}
		}
		// A new version must not get the id of one that is about to be removed.
		if v, ok := strings.CutPrefix(n, "v"); ok {
			if id, err := strconv.ParseUint(strings.Split(v, ".")[0], 10, 64); err == nil {
				k.lastID = max(k.lastID, id)
			}
		}
	}
	slices.Sort(generations)
	return generations
}

// create stores an empty journal.
func (k *Versions) create(id [idBytes]byte) error {
	k.newest++
	k.generation = k.newest
	j, err := createJournal(k.store, id)
	if err != nil {
		return err
	}
	if err := putNew(k.store, journalName(k.generation), j.file); err != nil {
		return errors.Join(err, j.file.Close())
	}
	k.journal = j
	return nil
}

// putNew stores a descriptor under a name that no other process has used. It fails with [status.ErrInUse] if one has.
func putNew(store Store, name string, f *os.File) error {
	if s, ok := store.(interface {
		PutNew(name string, f *os.File) error
	}); ok {
		return s.PutNew(name, f)
	}
	return store.Put(name, f)
}

// createJournal creates a journal in a new file that this process has locked. The caller puts it into the store.
func createJournal(store Store, id [idBytes]byte) (*journal, error) {
	var file *os.File
	var err error
	if s := fileStore(store); s != nil {
		file, err = s.Create()
	} else {
		file, err = newFile("sharedtensor journal")
	}
	if err == nil {
		err = lock(file)
	}
	var j *journal
	if err == nil {
		j, err = newJournal(file, id)
	}
	if err != nil {
		if file != nil {
			file.Close()
		}
		return nil, fmt.Errorf("create the journal: %w", err)
	}
	return j, nil
}

func journalName(generation uint64) string { return "j" + strconv.FormatUint(generation, 10) }

// isJournal reports whether a name in a store is that of a journal.
func isJournal(name string) bool { return strings.HasPrefix(name, "j") }

func fileName(id uint64, i int) string { return fmt.Sprintf("v%d.%d", id, i) }

// replay applies an entry of an earlier owner.
func (k *Versions) replay(e entry, at place, versions map[uint64]entry) {
	switch e.Kind {
	case entryPublished:
		k.lastID = max(k.lastID, e.ID)
		if k.live[e.ID] != nil {
			return
		}
		k.addLocked(e, placed{at: at})
		versions[e.ID] = e
	case entryWithdrawn:
		for _, v := range k.live {
			v.withdrawn = v.withdrawn || v.name == e.Name
		}
	case entryDigests:
		if v := k.live[e.ID]; v != nil {
			v.digests.at = at
			of := versions[e.ID]
			of.Tensors = e.Tensors
			versions[e.ID] = of
		}
	case entryFreed:
		k.dropLocked(e.ID)
		delete(versions, e.ID)
	case entryNumber:
		k.nameLocked(e.Name).last = max(k.nameLocked(e.Name).last, e.Version)
	case entryFloor:
		k.floor = max(k.floor, e.Version)
	}
}

// loadVersions opens the memory of the versions. failed has the reasons why that of some versions cannot be opened. It
// fails if another user may have written the memory.
func (k *Versions) loadVersions(versions map[uint64]entry, c *contents) (failed map[uint64]error, err error) {
	var all []string
	for id, e := range versions {
		if k.complete(id, e, c) {
			all = append(all, FileNames(id, e.Files)...)
		}
	}
	if err := c.load(all); err == nil || errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	failed = map[uint64]error{}
	for id, e := range versions {
		if k.complete(id, e, c) {
			if err := c.load(FileNames(id, e.Files)); err != nil {
				failed[id] = err
			}
		}
	}
	return failed, nil
}

// complete reports whether the store has all descriptors of a version.
func (k *Versions) complete(id uint64, e entry, c *contents) bool {
	if e.Files < 0 || e.Files > len(c.names) {
		return false
	}
	return !slices.ContainsFunc(FileNames(id, e.Files), func(name string) bool { return !c.names[name] })
}

// claim takes the descriptors of the versions. A version is dropped if the store does not have its memory. Versions whose
// memory failed to open stay in the store.
func (k *Versions) claim(versions map[uint64]entry, c *contents, failed map[uint64]error) []Adopted {
	var list []Adopted
	for id, e := range versions {
		if !k.complete(id, e, c) {
			k.log.Warn("a kept version is lost because the store does not have its memory", "name", e.Name, "version", e.Version)
			k.Freed(id)
			continue
		}
		a := Adopted{ID: id, Withdrawn: k.live[id].withdrawn, Tensors: e.Tensors, Version: Version{
			Name: e.Name, Number: e.Version, At: e.At, Publisher: e.Publisher, SourceID: e.SourceID, Digests: e.Digests, Retain: e.Retain, Parts: e.Parts,
			Manifest: e.Manifest, Handles: e.Handles,
		}}
		a.Err = failed[id]
		for _, name := range FileNames(id, e.Files) {
			if f := c.claim(name); a.Err == nil {
				a.Files = append(a.Files, f)
			}
		}
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b Adopted) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Number, b.Number))
	})
	return list
}

// sweep removes from the store what no entry refers to.
func (k *Versions) sweep(c *contents) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.garbage = slices.AppendSeq(k.garbage, maps.Keys(c.names))
	k.wakeLocked()
}

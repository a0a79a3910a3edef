package persist

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// memoryStore is a store in this process. It duplicates descriptors as a real store does.
type memoryStore struct {
	mu   sync.Mutex
	held map[string]*os.File
	put  func(name string) error // may refuse
	late error                   // of Put, which stores the descriptor in spite of it
	list func()                  // called after Stored has listed
}

func newMemoryStore(t testing.TB) *memoryStore {
	s := &memoryStore{held: map[string]*os.File{}}
	t.Cleanup(func() {
		for _, f := range s.held {
			f.Close()
		}
	})
	return s
}

func dup(f *os.File) *os.File {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	return os.NewFile(uintptr(fd), f.Name())
}

func (s *memoryStore) Put(name string, f *os.File) error {
	if s.put != nil {
		if err := s.put(name); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[name] = dup(f)
	return s.late
}

func (s *memoryStore) Remove(names ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range names {
		if f := s.held[n]; f != nil {
			f.Close()
			delete(s.held, n)
		}
	}
	return nil
}

func (s *memoryStore) Stored() (map[string]*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]*os.File{}
	for n, f := range s.held {
		out[n] = dup(f)
	}
	if s.list != nil {
		defer s.list()
	}
	return out, nil
}

// Names is that of a store in another process.
func (s *memoryStore) Names() ([]string, error) { return s.names(), nil }

func (s *memoryStore) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.held))
}

func open(t testing.TB, s Store) (*Versions, []Adopted, Numbers) {
	t.Helper()
	k, adopted, numbers, err := Open(s, slog.New(slog.NewTextHandler(io.Discard, nil)))
	require.NoError(t, err)
	t.Cleanup(func() { k.Close() })
	return k, adopted, numbers
}

// memory returns a file with the text as its content.
func memory(t testing.TB, text string) *os.File {
	t.Helper()
	f, err := newFile("test")
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	_, err = f.WriteString(text)
	require.NoError(t, err)
	return f
}

// publish stores a file and records a version whose manifest is the text.
func publish(t testing.TB, k *Versions, name string, number uint64, text string) uint64 {
	t.Helper()
	id, err := k.Put([]*os.File{memory(t, text)})
	require.NoError(t, err)
	require.NoError(t, k.Published(id, version(name, number, text), 1))
	return id
}

func version(name string, number uint64, text string) Version {
	manifest, err := message.Marshal(text)
	if err != nil {
		panic(err)
	}
	return Version{
		Name: name, Number: number, At: int64(number) * 1000, Publisher: message.Origin{PID: 7, Source: "file"}, SourceID: "id of " + text,
		Manifest: manifest, Handles: []message.Handle{{Kind: "memfd", Bytes: uint64(len(text)), File: 0}},
	}
}

// texts returns the adopted versions as name, number and content, and closes their files.
func texts(t testing.TB, adopted []Adopted) (list []string) {
	t.Helper()
	for _, a := range adopted {
		require.Len(t, a.Files, 1)
		b, err := io.ReadAll(io.NewSectionReader(a.Files[0], 0, 1<<20))
		require.NoError(t, err)
		a.Files[0].Close()
		require.Equal(t, version(a.Name, a.Number, string(b)), a.Version)
		text := fmt.Sprint(a.Name, a.Number, " ", string(b))
		if a.Withdrawn {
			text += " withdrawn"
		}
		if a.Tensors != nil {
			text += " " + string(a.Tensors)
		}
		list = append(list, text)
	}
	return list
}

func TestNextOwnerAdoptsVersions(t *testing.T) {
	s := newMemoryStore(t)
	k, adopted, _ := open(t, s)
	require.Empty(t, adopted)
	publish(t, k, "b", 1, "old")
	publish(t, k, "b", 2, "new")
	publish(t, k, "a", 5, "other")
	freed := publish(t, k, "a", 6, "freed")
	k.Freed(freed)
	gone := publish(t, k, "gone", 3, "read")
	require.NoError(t, k.Withdrawn("gone"))
	require.NoError(t, k.Withdrawn("gone"))
	publish(t, k, "gone", 4, "again")
	require.NoError(t, k.Digested(gone, []byte("digests")))
	require.NoError(t, k.Close())

	again, adopted, numbers := open(t, s)
	require.Equal(t, []string{"a5 other", "b1 old", "b2 new", "gone3 read withdrawn digests", "gone4 again"}, texts(t, adopted))
	require.NoError(t, again.compact())
	require.NoError(t, again.Close())
	again, adopted, numbers = open(t, s)
	require.Equal(t, []string{"a5 other", "b1 old", "b2 new", "gone3 read withdrawn digests", "gone4 again"}, texts(t, adopted))
	again.Freed(adopted[3].ID)
	again.Freed(adopted[4].ID)
	require.Equal(t, map[string]uint64{"gone": 4, "a": 6, "b": 2}, numbers.Last)
	require.Equal(t, k.Catalog(), again.Catalog())
	again.Freed(adopted[1].ID)
	require.NoError(t, again.Close())

	_, adopted, _ = open(t, s)
	require.Equal(t, []string{"a5 other", "b2 new"}, texts(t, adopted))
	require.Equal(t, []string{"j2", "v2.0", "v3.0"}, s.names())
}

func TestRefusedPublicationLeavesNothing(t *testing.T) {
	s := newMemoryStore(t)
	k, _, _ := open(t, s)
	s.put = func(name string) error {
		if strings.HasSuffix(name, ".1") {
			return unix.EMFILE
		}
		return nil
	}
	_, err := k.Put([]*os.File{memory(t, "a"), memory(t, "b")})
	require.ErrorIs(t, err, unix.EMFILE)
	id, err := k.Put([]*os.File{memory(t, "c")})
	require.NoError(t, err)
	k.Discard(id, 1)
	require.NoError(t, k.Close())
	require.Equal(t, []string{"j1"}, s.names())
}

// An owner that was killed between storing memory and its entry leaves descriptors that nothing refers to.
func TestUnreferencedMemoryIsRemoved(t *testing.T) {
	s := newMemoryStore(t)
	k, _, _ := open(t, s)
	_, err := k.Put([]*os.File{memory(t, "a")})
	require.NoError(t, err)
	require.NoError(t, k.Close())
	k, adopted, _ := open(t, s)
	require.Empty(t, adopted)
	require.NoError(t, k.Close())
	require.Equal(t, []string{"j1"}, s.names())
}

func TestVersionWithoutItsMemoryIsDropped(t *testing.T) {
	s := newMemoryStore(t)
	k, _, _ := open(t, s)
	publish(t, k, "a", 1, "lost")
	publish(t, k, "b", 1, "kept")
	require.NoError(t, k.Close())
	require.NoError(t, s.Remove("v1.0"))
	k, adopted, numbers := open(t, s)
	require.Equal(t, []string{"b1 kept"}, texts(t, adopted))
	require.Equal(t, map[string]uint64{"a": 1, "b": 1}, numbers.Last)
	require.NoError(t, k.Close())
}

// Many publications leave a journal whose size depends on what is live.
func TestJournalIsCompacted(t *testing.T) {
	s := newMemoryStore(t)
	k, _, _ := open(t, s)
	text := strings.Repeat("x", 5000)
	var before uint64
	for n := range uint64(500) {
		id := publish(t, k, "m", n+1, text)
		if before != 0 {
			k.Freed(before)
		}
		before = id
	}
	for n := range uint64(3000) { // names without versions
		k.Freed(publish(t, k, fmt.Sprint("once ", n), n+1, "y"))
	}
	require.NoError(t, k.Close())
	require.Greater(t, k.generation, uint64(3))
	require.Less(t, k.journal.end, int64(2*smallJournal))
	_, adopted, numbers := open(t, s)
	require.Equal(t, []string{"m500 " + text}, texts(t, adopted))
	require.LessOrEqual(t, len(numbers.Last), rememberedNames+1)
	require.Greater(t, numbers.Floor, uint64(rememberedNames))
	require.Less(t, len(s.names()), 4)
}

// Versions that are published while the journal is compacted are in the journal that the next owner reads, whether or not
// the store has the new one, and whether or not it is complete.
func TestCompactionLosesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		refused, late error
		full          bool // the new journal
	}{
		"stored":                   {},
		"refused":                  {refused: unix.EPIPE},
		"stored without answer":    {late: unix.EPIPE},
		"incomplete":               {full: true},
		"incomplete, not answered": {full: true, late: unix.EPIPE},
	} {
		t.Run(name, func(t *testing.T) {
			s := newMemoryStore(t)
			k, _, _ := open(t, s)
			publish(t, k, "a", 1, "before")
			s.put = func(name string) error {
				if name != "j2" {
					return nil
				}
				s.put = nil
				if c.full {
					fill(t, k.next)
				}
				publish(t, k, "a", 2, "during")
				s.late = c.late
				return c.refused
			}
			err := k.compact()
			s.late = nil
			require.Equal(t, name == "stored", err == nil, "%v", err)
			publish(t, k, "a", 3, "after")
			if c.refused == nil {
				require.Contains(t, s.names(), "j2", "the owner is killed before it can remove the journal")
			}
			require.NoError(t, k.Close())
			_, adopted, _ := open(t, s)
			require.Equal(t, []string{"a1 before", "a2 during", "a3 after"}, texts(t, adopted))
		})
	}
}

// fill makes the journal refuse further entries, like a full disk.
func fill(t testing.TB, j *journal) {
	t.Helper()
	_, err := unix.FcntlInt(j.file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW)
	require.NoError(t, err)
}

// A full disk refuses publications. Memory is freed nevertheless, so that the disk gets room.
func TestFullJournal(t *testing.T) {
	s := newMemoryStore(t)
	k, _, _ := open(t, s)
	freed := publish(t, k, "a", 1, "old")
	publish(t, k, "a", 2, "new")
	fill(t, k.journal)
	require.ErrorIs(t, k.Published(99, version("a", 3, "refused"), 1), unix.EPERM)
	require.ErrorIs(t, k.Withdrawn("a"), unix.EPERM)
	k.Freed(freed)
	require.NoError(t, k.Close())
	require.Equal(t, []string{"j1", "v2.0"}, s.names())
	_, adopted, numbers := open(t, s)
	require.Equal(t, []string{"a2 new"}, texts(t, adopted))
	require.EqualValues(t, 2, numbers.Last["a"])
}

// A store may have a descriptor although Put failed, for example if the answer was late.
func TestFailedPutIsDiscarded(t *testing.T) {
	s := newMemoryStore(t)
	k, _, _ := open(t, s)
	s.late = unix.ETIMEDOUT
	_, err := k.Put([]*os.File{memory(t, "a")})
	require.ErrorIs(t, err, unix.ETIMEDOUT)
	require.NoError(t, k.Close())
	require.Equal(t, []string{"j1"}, s.names())
}

// A process that reads the store while an owner replaces the journal may lock the old journal. It must not adopt it.
func TestJournalReplacedWhileItIsRead(t *testing.T) {
	s := newMemoryStore(t)
	k, _, _ := open(t, s)
	publish(t, k, "a", 1, "text")
	s.list = func() {
		s.list = nil
		s.held["j2"] = dup(memory(t, "the journal of the owner"))
	}
	_, _, _, err := Open(s, slog.Default())
	require.ErrorIs(t, err, status.ErrInUse)
}

// An entry of a later format must not be cut off as if it were damaged.
func TestEntryOfAnotherFormat(t *testing.T) {
	s := newMemoryStore(t)
	k, _, _ := open(t, s)
	publish(t, k, "a", 1, "text")
	_, err := k.journal.appendPayload([]byte{0xff})
	require.NoError(t, err)
	size := k.journal.end
	require.NoError(t, k.Close())
	_, _, _, err = Open(s, slog.Default())
	require.ErrorIs(t, err, errEntry)
	info, err := s.held["j1"].Stat()
	require.NoError(t, err)
	require.Equal(t, size, info.Size())
}

// Random changes by a series of owners: each adopts the state of the model.
func TestRandomChangesAreAdopted(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := newMemoryStore(t)
	type key struct {
		name   string
		number uint64
	}
	model, last := map[key]string{}, map[string]uint64{}
	for range 30 {
		k, adopted, _ := open(t, s)
		ids := map[key]uint64{}
		var want []string
		for v, text := range model {
			want = append(want, fmt.Sprint(v.name, v.number, " ", text))
		}
		for _, a := range adopted {
			ids[key{a.Name, a.Number}] = a.ID
		}
		require.ElementsMatch(t, want, texts(t, adopted))
		for range 40 {
			name := string(rune('a' + rng.IntN(5)))
			switch rng.IntN(6) {
			case 0:
				require.NoError(t, k.Withdrawn(name))
				for v, text := range model {
					if v.name == name && !strings.HasSuffix(text, " withdrawn") {
						model[v] = text + " withdrawn"
					}
				}
			case 1:
				for v := range model {
					k.Freed(ids[v])
					delete(model, v)
					break
				}
			case 2:
				require.NoError(t, k.compact())
			default:
				last[name]++
				v, text := key{name, last[name]}, fmt.Sprint(rng.IntN(1000))
				ids[v] = publish(t, k, v.name, v.number, text)
				model[v] = text
			}
		}
		require.NoError(t, k.Close())
	}
}

package persist

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// If one byte is damaged, only the last entry may be removed. A journal that ends at any byte yields the versions of all complete entries, and can be continued.
func TestJournalCutAtAnyByte(t *testing.T) {
	s := newMemoryStore(t)
	k, _, _ := open(t, s)
	var ends []int64
	for n := range uint64(4) {
		ends = append(ends, k.journal.end)
		publish(t, k, "m", n+1, fmt.Sprint("text ", n))
	}
	ends = append(ends, k.journal.end)
	whole := make([]byte, k.journal.end)
	_, err := k.journal.file.ReadAt(whole, 0)
	require.NoError(t, err)
	require.NoError(t, k.Close())
	for cut := int64(headerBytes); cut <= int64(len(whole)); cut++ {
		for _, damage := range []bool{false, true} {
			f := memory(t, string(whole[:cut]))
			if damage {
				if cut == int64(headerBytes) {
					continue
				}
				_, err := f.WriteAt([]byte{whole[cut-1] ^ 0x40}, cut-1)
				require.NoError(t, err)
				_, err = f.WriteAt(whole[cut:], cut)
				require.NoError(t, err)
			}
			var got []uint64
			visit := func(e entry, _ place) error {
				got = append(got, e.Version)
				return nil
			}
			j, err := readJournal(f, visit)
			if damage && cut <= ends[len(ends)-2] { // not in the last entry
				require.ErrorIs(t, err, errDamaged, "at %d of %d", cut, len(whole))
				info, err := f.Stat()
				require.NoError(t, err)
				require.EqualValues(t, len(whole), info.Size())
				require.NoError(t, f.Close())
				continue
			}
			require.NoError(t, err)
			want := 0
			for want+1 < len(ends) && ends[want+1] <= cut && !(damage && ends[want+1] >= cut) {
				want++
			}
			require.Len(t, got, want, "cut at %d of %d, damaged: %v", cut, len(whole), damage)
			require.Equal(t, ends[want], j.end)
			_, err = j.append(entry{Kind: entryNumber, Name: "next", Version: 99})
			require.NoError(t, err)
			got = nil
			_, err = readJournal(f, visit)
			require.NoError(t, err)
			require.Len(t, got, want+1)
			require.NoError(t, f.Close())
		}
	}
}

// A read error leaves the store as it is. The test fails each read once.
func TestUnreadableJournal(t *testing.T) {
	s := newMemoryStore(t)
	k, _, _ := open(t, s)
	for n := range uint64(3) {
		publish(t, k, "m", n+1, fmt.Sprint("text ", n))
	}
	require.NoError(t, k.Close())
	before := s.names()
	defer func(f func(string) error) { status.Fault = f }(status.Fault)
	for failing := 0; ; failing++ {
		reads := 0
		status.Fault = func(string) error {
			if reads++; reads-1 == failing {
				return unix.EIO
			}
			return nil
		}
		k, adopted, _, err := Open(s, slog.Default())
		if reads <= failing {
			require.NoError(t, err)
			require.Len(t, texts(t, adopted), 3)
			require.NoError(t, k.Close())
			require.Greater(t, failing, 6)
			return
		}
		require.ErrorIs(t, err, unix.EIO, "read %d", failing)
		require.Equal(t, before, s.names())
	}
}

// An owner never begins an empty journal beside the memory of versions.
func TestMemoryWithoutJournal(t *testing.T) {
	s := newMemoryStore(t)
	require.NoError(t, s.Put("v1.0", memory(t, "text")))
	_, _, _, err := Open(s, slog.Default())
	require.ErrorIs(t, err, status.ErrInUse)
	require.Equal(t, []string{"v1.0"}, s.names())
	require.NoError(t, s.Put("j1", memory(t, ""))) // abandoned
	_, _, _, err = Open(s, slog.Default())
	require.ErrorIs(t, err, status.ErrInUse)
	require.Equal(t, []string{"j1", "v1.0"}, s.names())
}

// A change is refused if writing the new journal fails and abandoning it fails too.
func TestSuccessorWithoutEntry(t *testing.T) {
	s := newMemoryStore(t)
	k, _, _ := open(t, s)
	publish(t, k, "a", 1, "before")
	s.put = func(name string) error {
		if name != "j2" {
			return nil
		}
		s.put = nil
		_, err := unix.FcntlInt(k.next.file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE)
		require.NoError(t, err)
		require.ErrorIs(t, k.Published(99, version("a", 2, "refused"), 1), unix.EPERM)
		return nil
	}
	require.NoError(t, k.compact())
	require.NoError(t, k.Close())
	_, adopted, _ := open(t, s)
	require.Equal(t, []string{"a1 before"}, texts(t, adopted))
}

func TestFileThatIsNoJournal(t *testing.T) {
	s := newMemoryStore(t)
	require.NoError(t, s.Put("j3", memory(t, "something else")))
	_, _, _, err := Open(s, slog.Default())
	require.ErrorIs(t, err, errNoJournal)
}

//go:build unix

package jitcache

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func open(t *testing.T, max int64) *Cache {
	c, err := Open(Options{Dir: filepath.Join(t.TempDir(), "a", "jit"), MaxBytes: max})
	require.NoError(t, err)
	return c
}

func TestPutGet(t *testing.T) {
	t.Parallel()
	c := open(t, 0)
	k := NewKey("source", "options")
	_, ok := c.Get(k)
	require.False(t, ok)
	require.NoError(t, c.Put(k, []byte("code")))
	data, ok := c.Get(k)
	require.True(t, ok)
	require.Equal(t, "code", string(data))
	require.NoError(t, c.Put(k, nil))
	data, ok = c.Get(k)
	require.True(t, ok)
	require.Empty(t, data)
	require.Equal(t, Stats{Hits: 2, Misses: 1}, c.Stats())

	folder, err := os.Stat(c.Dir())
	require.NoError(t, err)
	require.EqualValues(t, 0o700, folder.Mode().Perm())
	file, err := os.Stat(c.path(k))
	require.NoError(t, err)
	require.EqualValues(t, 0o600, file.Mode().Perm())

	var none *Cache
	require.NoError(t, none.Put(k, nil))
	_, ok = none.Get(k)
	require.False(t, ok)
}

func TestKeyBounds(t *testing.T) {
	t.Parallel()
	require.NotEqual(t, NewKey("ab", "c"), NewKey("a", "bc"))
	require.NotEqual(t, NewKey("a"), NewKey("a", ""))
	require.Equal(t, NewKey("a", "b"), NewKey("a", "b"))
}

// A changed byte, a truncated file and an entry under another key's name are misses, and are removed.
func TestDamagedEntry(t *testing.T) {
	t.Parallel()
	c := open(t, 0)
	k, other := NewKey("k"), NewKey("other")
	code := bytes.Repeat([]byte("code"), 100)
	damage := map[string]func(file []byte) []byte{
		"byte":      func(f []byte) []byte { f[len(f)-7] ^= 1; return f },
		"digest":    func(f []byte) []byte { f[len(magic)] ^= 1; return f },
		"truncated": func(f []byte) []byte { return f[:len(f)-1] },
		"header":    func(f []byte) []byte { return f[:10] },
		"empty":     func([]byte) []byte { return nil },
		"format":    func(f []byte) []byte { f[7]++; return f },
		"other key": func([]byte) []byte {
			require.NoError(t, c.Put(other, code))
			file, err := os.ReadFile(c.path(other))
			require.NoError(t, err)
			return file
		},
	}
	for name, change := range damage {
		require.NoError(t, c.Put(k, code))
		file, err := os.ReadFile(c.path(k))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(c.path(k), change(file), 0o600))
		_, ok := c.Get(k)
		require.False(t, ok, name)
		require.NoFileExists(t, c.path(k), name)
	}
}

// Folders, files and links that other users could have written are refused.
func TestUnsafeFiles(t *testing.T) {
	t.Parallel()
	c := open(t, 0)
	k := NewKey("k")
	require.NoError(t, c.Put(k, []byte("code")))
	require.NoError(t, os.Chmod(c.path(k), 0o666))
	_, ok := c.Get(k)
	require.False(t, ok)

	require.NoError(t, c.Put(k, []byte("code")))
	moved := c.path(k) + ".moved"
	require.NoError(t, os.Rename(c.path(k), moved))
	require.NoError(t, os.Symlink(moved, c.path(k)))
	_, ok = c.Get(k)
	require.False(t, ok)

	require.NoError(t, syscall.Mkfifo(c.path(k), 0o600))
	_, ok = c.Get(k) // does not block
	require.False(t, ok)

	dir := filepath.Join(t.TempDir(), "shared")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Chmod(dir, 0o777))
	_, err := Open(Options{Dir: dir})
	require.ErrorIs(t, err, ErrUnsafe)
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chmod(dir, 0o700))
		require.NoError(t, os.Chown(dir, 1, 1))
		_, err = Open(Options{Dir: dir})
		require.ErrorIs(t, err, ErrUnsafe)
	}
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(c.Dir(), link))
	_, err = Open(Options{Dir: link})
	require.ErrorContains(t, err, "is not a folder")
	_, err = Open(Options{Dir: moved})
	require.Error(t, err)
	_, err = Open(Options{MaxBytes: -1})
	require.Error(t, err)
}

// The least recently used entries are removed first, and an entry over the limit is not stored.
func TestBound(t *testing.T) {
	t.Parallel()
	const size = 1000
	c := open(t, 4*int64(size+headerSize))
	keys := make([]Key, 4)
	for i := range keys {
		keys[i] = NewKey(fmt.Sprint(i))
		require.NoError(t, c.Put(keys[i], make([]byte, size)))
		at := time.Now().Add(time.Duration(i-10) * time.Minute)
		require.NoError(t, os.Chtimes(c.path(keys[i]), at, at))
	}
	_, ok := c.Get(keys[0])
	require.True(t, ok)
	require.NoError(t, c.Put(NewKey("new"), make([]byte, 2*size)))
	for i, want := range []bool{true, false, false, true} {
		_, ok := c.Get(keys[i])
		require.Equal(t, want, ok, i)
	}
	require.NoError(t, c.Put(NewKey("large"), make([]byte, 5*size)))
	_, ok = c.Get(NewKey("large"))
	require.False(t, ok)

	stale := filepath.Join(c.Dir(), "tmp-1")
	require.NoError(t, os.WriteFile(stale, nil, 0o600))
	old := time.Now().Add(-2 * staleAfter)
	require.NoError(t, os.Chtimes(stale, old, old))
	require.NoError(t, c.Put(NewKey("again"), nil))
	require.NoFileExists(t, stale)
}

// Concurrent writers and readers of one key see whole entries.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	c := open(t, 100_000)
	k := NewKey("k")
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 50 {
				if err := c.Put(k, bytes.Repeat([]byte{byte(g)}, 5000)); err != nil {
					t.Error(err)
				}
				if data, ok := c.Get(k); ok && !bytes.Equal(data, bytes.Repeat(data[:1], 5000)) {
					t.Error("a partial entry")
				}
				_ = c.Put(NewKey(fmt.Sprint(g, i)), make([]byte, 5000))
			}
		}()
	}
	wg.Wait()
	list, err := os.ReadDir(c.Dir())
	require.NoError(t, err)
	for _, e := range list {
		require.Equal(t, suffix, filepath.Ext(e.Name()))
	}
}

// Package jitcache stores compiled GPU code in a folder, so that programs compile a kernel once. Packages nvrtc and
// nvjitlink use it; the key of an entry covers everything that determines the code.
//
//	cache, err := jitcache.Open(jitcache.Options{})
//	if err != nil {
//		return err
//	}
//	binary, err := nvrtc.Compile(ctx, "scale.cu", source, nvrtc.Options{Arch: "sm_90", Cache: cache})
//
// Several processes may use one folder. An entry is written to a temporary file and renamed, so readers see whole entries.
// Entries carry a SHA-256 digest: a damaged entry is removed and counts as a miss. Code from the folder runs on the GPU
// with the rights of this process, so a folder or file that other users can write is refused.
package jitcache

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// DefaultMaxBytes is the default limit of a cache: 256 MiB.
const DefaultMaxBytes = 256 << 20

// Options are the options of [Open].
type Options struct {
	// Dir is the folder. It is created with mode 0700. If it is empty, the folder is sharedtensor/jit in the user's cache
	// folder.
	Dir string
	// MaxBytes limits the files in the folder. When a new entry exceeds it, the entries that were not used for the longest
	// time are removed. 0 means [DefaultMaxBytes].
	MaxBytes int64
}

// Cache is a folder of compiled code. Its methods may be called concurrently. A nil cache stores nothing.
type Cache struct {
	dir          string
	max          int64
	hits, misses atomic.Uint64
}

// Open returns a cache, and creates its folder if necessary. It fails with [ErrUnsafe] if another user owns the folder or
// can write to it.
func Open(o Options) (*Cache, error) {
	if o.MaxBytes < 0 {
		return nil, fmt.Errorf("jit cache: a limit of %d bytes is negative", o.MaxBytes)
	}
	dir := o.Dir
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("jit cache: %w", err)
		}
		dir = filepath.Join(user, "sharedtensor", "jit")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("jit cache: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, fmt.Errorf("jit cache: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("jit cache: %s is not a folder", dir)
	}
	if err := checkOwner(info); err != nil {
		return nil, fmt.Errorf("jit cache: %s: %w", dir, err)
	}
	return &Cache{dir: dir, max: cmp.Or(o.MaxBytes, DefaultMaxBytes)}, nil
}

// ErrUnsafe means that users other than the one of this process own or can write a file or folder of a cache.
var ErrUnsafe = errors.New("other users can write it")

// Dir returns the folder.
func (c *Cache) Dir() string { return c.dir }

// Stats are the numbers of lookups since [Open].
type Stats struct {
	// Hits counts lookups that found an entry.
	Hits uint64
	// Misses counts lookups that found no valid entry.
	Misses uint64
}

// Stats returns the numbers of lookups since Open.
func (c *Cache) Stats() Stats { return Stats{c.hits.Load(), c.misses.Load()} }

// Key identifies an entry.
type Key [sha256.Size]byte

// NewKey returns the key of parts. Parts with the same bytes and different bounds yield different keys.
func NewKey(parts ...string) Key {
	h := sha256.New()
	for _, p := range parts {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		_, _ = io.WriteString(h, p) // a hash does not fail
	}
	return Key(h.Sum(nil))
}

// A file is the magic, the digest of the rest, the key, and the data.
const (
	magic      = "STJIT\x00\x00\x01"
	headerSize = len(magic) + 2*sha256.Size
	suffix     = ".jit"
)

func (c *Cache) path(k Key) string { return filepath.Join(c.dir, hex.EncodeToString(k[:])+suffix) }

// Get returns the data of an entry, and marks the entry as used. ok is false if there is no valid entry. A damaged entry is
// removed.
func (c *Cache) Get(k Key) (data []byte, ok bool) {
	if c == nil {
		return nil, false
	}
	data, err := c.read(k)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			_ = os.Remove(c.path(k)) // best effort: the next Put replaces it
		}
		c.misses.Add(1)
		return nil, false
	}
	now := time.Now()
	_ = os.Chtimes(c.path(k), now, now) // best effort: the entry is removed earlier
	c.hits.Add(1)
	return data, true
}

var errDamaged = errors.New("the entry is damaged")

func (c *Cache) read(k Key) ([]byte, error) {
	f, err := openNoFollow(c.path(k))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() < int64(headerSize) || info.Size() > c.max {
		return nil, errDamaged
	}
	if err := checkOwner(info); err != nil {
		return nil, err
	}
	file := make([]byte, info.Size())
	if _, err := io.ReadFull(f, file); err != nil {
		return nil, err
	}
	rest, ok := strings.CutPrefix(string(file[:headerSize]), magic)
	digest := sha256.Sum256(file[len(magic)+sha256.Size:])
	if !ok || rest != string(digest[:])+string(k[:]) {
		return nil, errDamaged
	}
	return file[headerSize:], nil
}

// Put stores an entry, and removes the least recently used entries if the folder exceeds its limit. An entry over the limit
// is not stored. Callers may ignore the error: the code is compiled again.
func (c *Cache) Put(k Key, data []byte) error {
	size := int64(headerSize + len(data))
	if c == nil || size > c.max {
		return nil
	}
	if err := c.trim(c.max - size); err != nil {
		return fmt.Errorf("jit cache: %w", err)
	}
	file := make([]byte, 0, size)
	file = append(file, magic...)
	file = append(file, make([]byte, sha256.Size)...)
	file = append(file, k[:]...)
	file = append(file, data...)
	digest := sha256.Sum256(file[len(magic)+sha256.Size:])
	copy(file[len(magic):], digest[:])
	if err := c.write(k, file); err != nil {
		return fmt.Errorf("jit cache: %w", err)
	}
	return nil
}

// write writes a temporary file, which has mode 0600, and renames it.
func (c *Cache) write(k Key, file []byte) error {
	f, err := os.CreateTemp(c.dir, "tmp-*")
	if err != nil {
		return err
	}
	_, err = f.Write(file)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), c.path(k))
	}
	if err != nil {
		_ = os.Remove(f.Name()) // best effort: trim removes it later
	}
	return err
}

// staleAfter is the age after which a temporary file belongs to a process that ended.
const staleAfter = time.Hour

// trim removes stale temporary files, and the least recently used entries until all entries have at most max bytes.
func (c *Cache) trim(max int64) error {
	list, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	var entries []os.FileInfo
	total := int64(0)
	for _, e := range list {
		info, err := e.Info()
		if err != nil {
			continue // another process removed it
		}
		switch name := e.Name(); {
		case strings.HasPrefix(name, "tmp-") && time.Since(info.ModTime()) > staleAfter:
			_ = os.Remove(filepath.Join(c.dir, name)) // best effort: removed at the next trim
		case strings.HasSuffix(name, suffix):
			entries = append(entries, info)
			total += info.Size()
		}
	}
	slices.SortFunc(entries, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, e := range entries {
		if total <= max {
			return nil
		}
		if err := os.Remove(filepath.Join(c.dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		total -= e.Size()
	}
	return nil
}

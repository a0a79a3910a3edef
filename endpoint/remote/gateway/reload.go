package gateway

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// reloadEvery is the minimum interval between checks of the files.
const reloadEvery = time.Second

// reloaded is a value that is read from files and reloaded when one of them changes. If a changed file cannot be read,
// the previous value stays in use.
type reloaded[T any] struct {
	paths []string
	read  func() (T, error)
	log   *slog.Logger

	mu      sync.Mutex
	value   T
	stamps  []fileStamp
	checked time.Time
}

// fileStamp identifies a state of a file.
type fileStamp struct {
	modified time.Time
	bytes    int64
}

// newReloaded reads the initial value.
func newReloaded[T any](log *slog.Logger, read func() (T, error), paths ...string) (*reloaded[T], error) {
	r := &reloaded[T]{paths: paths, read: read, log: log, checked: time.Now()}
	r.stamps = r.look() // before reading, so that a change in between is detected
	var err error
	r.value, err = read()
	return r, err
}

func (r *reloaded[T]) look() []fileStamp {
	stamps := make([]fileStamp, len(r.paths))
	for i, path := range r.paths {
		stamps[i] = stampOf(path)
	}
	return stamps
}

// stampOf returns the state of a file. That of a directory combines its files, which may be links to files that change.
func stampOf(path string) (stamp fileStamp) {
	info, err := os.Stat(path)
	if err != nil {
		return stamp
	}
	stamp = fileStamp{info.ModTime(), info.Size()}
	if !info.IsDir() {
		return stamp
	}
	entries, _ := os.ReadDir(path) // a missing directory has no files
	for _, e := range entries {
		if inner, err := os.Stat(filepath.Join(path, e.Name())); err == nil {
			stamp.bytes = stamp.bytes*31 + inner.Size() + inner.ModTime().UnixNano()
		}
	}
	return stamp
}

// get returns the value of the files as of at most reloadEvery ago.
func (r *reloaded[T]) get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.checked) < reloadEvery {
		return r.value
	}
	r.checked = time.Now()
	stamps := r.look()
	for i := range stamps {
		if stamps[i] != r.stamps[i] {
			r.reloadLocked(stamps)
			break
		}
	}
	return r.value
}

func (r *reloaded[T]) reloadLocked(stamps []fileStamp) {
	value, err := r.read()
	r.stamps = stamps
	if r.log == nil {
		r.log = slog.Default()
	}
	if err != nil {
		r.log.Error("cannot reload changed files, keeping the previous version", "files", r.paths, "error", err)
		return
	}
	r.log.Info("reloaded changed files", "files", r.paths)
	r.value = value
}

package gateway

import (
	"log/slog"
	"os"
	"sync"
	"time"
)

// reloadEvery is how often files are looked at for changes at most.
const reloadEvery = time.Second

// reloaded is a value made of files, made anew when one of them changes. A change that cannot be read leaves the value
// as it was.
type reloaded[T any] struct {
	paths []string
	read  func() (T, error)
	log   *slog.Logger

	mu      sync.Mutex
	value   T
	stamps  []fileStamp
	checked time.Time
}

// fileStamp tells one state of a file from another.
type fileStamp struct {
	modified time.Time
	bytes    int64
}

// newReloaded reads the value for the first time.
func newReloaded[T any](log *slog.Logger, read func() (T, error), paths ...string) (*reloaded[T], error) {
	r := &reloaded[T]{paths: paths, read: read, log: log, checked: time.Now()}
	r.stamps = r.look() // before reading: a change in between is seen next time
	var err error
	r.value, err = read()
	return r, err
}

func (r *reloaded[T]) look() []fileStamp {
	stamps := make([]fileStamp, len(r.paths))
	for i, path := range r.paths {
		if info, err := os.Stat(path); err == nil {
			stamps[i] = fileStamp{info.ModTime(), info.Size()}
		}
	}
	return stamps
}

// get is the value of the files as they are now, or were a second ago.
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
		r.log.Error("a changed file is not used; what it was before holds", "files", r.paths, "error", err)
		return
	}
	r.log.Info("a changed file is used from now on", "files", r.paths)
	r.value = value
}

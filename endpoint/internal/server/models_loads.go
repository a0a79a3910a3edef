package server

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Load is a version that a server has announced and is still loading. Its methods are safe for concurrent use. A nil
// *Load does nothing.
type Load struct {
	loads *loads
	name  string
}

// Progress reports that done of total bytes are loaded.
func (l *Load) Progress(done, total int64) {
	l.change(func(info *message.Loading) {
		info.UpdatedAt = time.Now().UnixNano()
		if info.StartedAt == 0 {
			info.StartedAt = info.UpdatedAt
		}
		info.State, info.Done, info.Total = message.LoadRunning, uint64(max(done, 0)), uint64(max(total, 0))
	})
}

// Fail reports that loading failed and why. Clients see the error until the name is loaded again or published.
func (l *Load) Fail(err error) {
	l.change(func(info *message.Loading) {
		info.State, info.UpdatedAt, info.Error = message.LoadFailed, time.Now().UnixNano(), status.EncodeError(err)
	})
}

// Done removes the load from the list.
func (l *Load) Done() {
	if l != nil {
		l.loads.drop(l)
	}
}

func (l *Load) change(f func(*message.Loading)) {
	if l == nil {
		return
	}
	l.loads.mu.Lock()
	defer l.loads.mu.Unlock()
	if e := l.loads.byName[l.name]; e != nil && e.load == l {
		f(&e.info)
	}
}

// Announce adds a load of a name to the list. source may be empty. It fails with [status.ErrInvalid] if the name is
// invalid.
func (m *Models) Announce(name, source string) (*Load, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	l := &Load{&m.loads, name}
	m.loads.put(l, message.Loading{Name: name, State: message.LoadWaiting, Source: message.CutText(source, message.MaxErrorMessage)})
	return l, nil
}

// loads holds the announced loads of a server, at most one for each name. The zero value is empty.
type loads struct {
	mu     sync.Mutex
	byName map[string]*loadEntry
}

// loadEntry is a load and its description for clients.
type loadEntry struct {
	load *Load
	info message.Loading
}

func (l *loads) put(load *Load, info message.Loading) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byName == nil {
		l.byName = map[string]*loadEntry{}
	}
	l.byName[load.name] = &loadEntry{load, info}
}

func (l *loads) drop(load *Load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.byName[load.name]; e != nil && e.load == load {
		delete(l.byName, load.name)
	}
}

// published removes a failed load of a name that was published meanwhile.
func (l *loads) published(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.byName[name]; e != nil && e.info.State == message.LoadFailed {
		delete(l.byName, name)
	}
}

// get returns the load of a name, or nil.
func (l *loads) get(name string) *message.Loading {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.byName[name]
	if e == nil {
		return nil
	}
	info := e.info
	return &info
}

// list returns all loads, sorted by name.
func (l *loads) list() (list []message.Loading) {
	l.mu.Lock()
	for _, e := range l.byName {
		list = append(list, e.info)
	}
	l.mu.Unlock()
	slices.SortFunc(list, func(a, b message.Loading) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// absent adds the state of the load to err if err is about a name that is not published.
func (l *loads) absent(name string, err error) error {
	if !errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNoVersion) {
		return err
	}
	info := l.get(name)
	switch {
	case info == nil:
		return err
	case info.State == message.LoadFailed:
		return status.WithClass(status.ErrNotFound, fmt.Errorf("not found: it could not be loaded: %w", status.DecodeError(info.Error)))
	}
	far := "it waits for its turn"
	if info.State == message.LoadRunning {
		far = fmt.Sprintf("%d of %d bytes", info.Done, info.Total)
		if info.Total > 0 {
			far = fmt.Sprintf("%.0f%%, %s", 100*float64(info.Done)/float64(info.Total), far)
		}
	}
	return status.WithClass(status.ErrNotFound, fmt.Errorf("%w: %s", status.ErrLoading, far))
}

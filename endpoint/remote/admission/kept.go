package admission

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"
)

// ErrStopping reports that the gateway keeps nothing any more, because it stops.
var ErrStopping = NewError(Unavailable, "the gateway is stopping")

// Kept holds values that clients reach by random ids, until they are removed or were not used for a while. Its methods
// are safe for concurrent use.
type Kept[T any] struct {
	slots *Pool // one slot for each value
	left  func(T)
	free  func(T) error

	mu     sync.Mutex
	byID   map[string]*Entry[T]
	closed bool
}

// Entry is a kept value.
type Entry[T any] struct {
	// ID cannot be guessed.
	ID string
	// Value is valid from Open to Release.
	Value T

	lasts   time.Duration
	until   time.Time
	readers int
	gone    bool // removed while it was read
	slot    *Charge
}

// NewKept returns a store of up to limit values. One identity may have half of them, and all read-only identities
// together a quarter. left is called when a value is removed, and free when it is no longer read either.
func NewKept[T any](limit int64, left func(T), free func(T) error) *Kept[T] {
	return &Kept[T]{slots: NewPool(Limits{Bytes: limit, ReadOnly: limit / 4}), left: left, free: free, byID: make(map[string]*Entry[T])}
}

// Limit returns the maximum number of values of an identity.
func (k *Kept[T]) Limit(id Identity) int64 { return k.slots.Limit(id) }

// Add keeps a value of id until it was not used for the given time. It returns ErrLimit if the client has too many
// values, and ErrStopping after Close. The value then remains with the caller.
func (k *Kept[T]) Add(id Identity, value T, lasts time.Duration) (*Entry[T], error) {
	slot := k.slots.Open(id)
	if err := slot.Add(1); err != nil {
		slot.Close()
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		slot.Close()
		return nil, ErrStopping
	}
	e := &Entry[T]{ID: rand.Text(), Value: value, lasts: lasts, until: time.Now().Add(lasts), slot: slot}
	k.byID[e.ID] = e
	return e, nil
}

// Open renews a value and returns it for use until Release. It returns nil if there is no such value.
func (k *Kept[T]) Open(id string) *Entry[T] {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.byID[id]
	if e != nil {
		e.readers++
		e.until = time.Now().Add(e.lasts)
	}
	return e
}

// Release ends the use of a value.
func (k *Kept[T]) Release(e *Entry[T]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e.readers--; e.readers == 0 && e.gone {
		_ = k.free(e.Value) // best effort: the value was removed
	}
}

// Remove removes a value and reports whether it existed. A value in use is freed after its last Release.
func (k *Kept[T]) Remove(id string) (found bool, err error) {
	err = k.removeIf(func(e *Entry[T]) bool {
		found = found || e.ID == id
		return e.ID == id
	})
	return found, err
}

func (k *Kept[T]) removeIf(old func(*Entry[T]) bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for id, e := range k.byID {
		if !old(e) {
			continue
		}
		delete(k.byID, id)
		e.slot.Close()
		k.left(e.Value)
		if e.gone = true; e.readers == 0 {
			errs = append(errs, k.free(e.Value))
		}
	}
	return errors.Join(errs...)
}

// Run removes expired values at an interval until ctx ends.
func (k *Kept[T]) Run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			_ = k.removeIf(func(e *Entry[T]) bool { return e.readers == 0 && now.After(e.until) })
		}
	}
}

// Close removes all values.
func (k *Kept[T]) Close() error {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	return k.removeIf(func(*Entry[T]) bool { return true })
}

package admission

import (
	"container/list"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// ErrStopping reports that the gateway does not keep a value because it stops.
var ErrStopping = NewError(Unavailable, "the gateway is stopping")

// Kept holds values under ids until they are removed or were not used for a while. Its methods are safe for concurrent
// use.
type Kept[T any] struct {
	slots  *Pool // one slot for each value; nil if values are evicted instead
	evict  Evict
	left   func(T)
	free   func(T) error
	mu     sync.Mutex
	byID   map[string]*Entry[T]
	unused map[string]*unused // by identity; only if values are evicted
	closed bool
}

// Evict limits the unused values of each identity. The value that was unused the longest is removed first.
type Evict struct {
	// Values and Weight limit the number of values and the sum of their weights. 0 means no limit.
	Values int
	Weight int64
}

// unused lists the values of an identity that are not in use.
type unused struct {
	order  list.List // of *Entry[T], longest unused first
	weight int64
}

// Entry is a kept value.
type Entry[T any] struct {
	// ID identifies the value.
	ID string
	// Value is valid from Open to Release.
	Value T

	identity string
	weight   int64
	lasts    time.Duration
	timer    *time.Timer // removes the value; nil if it does not expire or is in use
	readers  int
	gone     bool          // removed
	place    *list.Element // in the list of unused values
	slot     *Charge
}

// NewKept returns a store of up to limit values, which refuses more. One identity may have half of them or its quota, and
// all read-only identities together a quarter. quota may be nil. left is called when a value is removed, and free when it is no longer used
// either.
func NewKept[T any](limit int64, quota func(rights.Quota) int64, left func(T), free func(T) error) *Kept[T] {
	k := NewEvicting(Evict{}, left, free)
	k.slots = NewPool(Limits{Bytes: limit, ReadOnly: limit / 4, Quota: quota})
	return k
}

// NewEvicting returns a store that removes old values to make room for new ones. left and free are as in [NewKept] and
// may be nil.
func NewEvicting[T any](evict Evict, left func(T), free func(T) error) *Kept[T] {
	if left == nil {
		left = func(T) {}
	}
	if free == nil {
		free = func(T) error { return nil }
	}
	return &Kept[T]{evict: evict, left: left, free: free, byID: make(map[string]*Entry[T]), unused: make(map[string]*unused)}
}

// Limit returns the maximum number of values of an identity.
func (k *Kept[T]) Limit(id rights.Identity) int64 { return k.slots.Limit(id) }

// Add keeps a value of an identity under an id that cannot be guessed, until it was not used for the given time. It
// returns ErrLimit if the client has too many values, and ErrStopping after Close. The value then remains with the
// caller.
func (k *Kept[T]) Add(id rights.Identity, value T, lasts time.Duration) (*Entry[T], error) {
	e, err := k.Use(id, rand.Text(), value, 0, lasts)
	if err == nil {
		k.Release(e)
	}
	return e, err
}

// Use is like Add, with an id that is not kept yet and a weight. The value is in use until Release. lasts 0 means that it does
// not expire.
func (k *Kept[T]) Use(identity rights.Identity, id string, value T, weight int64, lasts time.Duration) (*Entry[T], error) {
	e := &Entry[T]{ID: id, Value: value, identity: identity.Key(), weight: weight, lasts: lasts, readers: 1}
	if k.slots != nil {
		e.slot = k.slots.Open(identity)
		if err := e.slot.Add(1); err != nil {
			e.slot.Close()
			return nil, err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		if e.slot != nil {
			e.slot.Close()
		}
		return nil, ErrStopping
	}
	k.byID[id] = e
	return e, nil
}

// Open renews a value and returns it for use until Release. It returns nil if there is no such value.
func (k *Kept[T]) Open(id string) *Entry[T] {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.byID[id]
	if e != nil {
		k.unlistLocked(e)
		e.readers++
	}
	return e
}

// OpenOf is like Open, but returns nil also if the value belongs to another identity.
func (k *Kept[T]) OpenOf(id rights.Identity, name string) *Entry[T] {
	e := k.Open(name)
	if e != nil && e.identity != id.Key() {
		k.Release(e)
		return nil
	}
	return e
}

// RemoveOf is like Remove, but does nothing if the value belongs to another identity.
func (k *Kept[T]) RemoveOf(id rights.Identity, name string) (found bool, err error) {
	e := k.OpenOf(id, name)
	if e == nil {
		return false, nil
	}
	defer k.Release(e)
	return k.Remove(name)
}

// Peek returns a value without renewing it.
func (k *Kept[T]) Peek(id string) (value T, found bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.byID[id]
	if e == nil {
		return value, false
	}
	return e.Value, true
}

// Release ends the use of a value.
func (k *Kept[T]) Release(e *Entry[T]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch e.readers--; {
	case e.readers > 0:
	case e.gone:
		_ = k.free(e.Value) // best effort: the value was removed
	default:
		k.listLocked(e)
	}
}

// listLocked lets a value expire, and removes the values that exceed the limits.
func (k *Kept[T]) listLocked(e *Entry[T]) {
	if e.lasts > 0 {
		var timer *time.Timer
		timer = contain.After(e.lasts, func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			if e.timer == timer && !e.gone { // it was not used since
				_ = k.removeLocked(e) // best effort: no caller waits for it
			}
		}, nil)
		e.timer = timer
	}
	if k.slots != nil {
		return
	}
	u := k.unused[e.identity]
	if u == nil {
		u = &unused{}
		k.unused[e.identity] = u
	}
	e.place = u.order.PushBack(e)
	u.weight += e.weight
	for k.evict.Values > 0 && u.order.Len() > k.evict.Values || k.evict.Weight > 0 && u.weight > k.evict.Weight {
		_ = k.removeLocked(u.order.Front().Value.(*Entry[T])) //nolint:forcetypeassert // the list holds nothing else
	}
}

// unlistLocked undoes listLocked.
func (k *Kept[T]) unlistLocked(e *Entry[T]) {
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	if e.place == nil {
		return
	}
	u := k.unused[e.identity]
	u.order.Remove(e.place)
	e.place = nil
	if u.weight -= e.weight; u.order.Len() == 0 {
		delete(k.unused, e.identity)
	}
}

// Drop removes a value that is in use. It is freed after its last Release.
func (k *Kept[T]) Drop(e *Entry[T]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !e.gone {
		_ = k.removeLocked(e) // frees nothing yet
	}
}

// Remove removes a value and reports whether it existed. A value in use is freed after its last Release.
func (k *Kept[T]) Remove(id string) (found bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.byID[id]
	if e == nil {
		return false, nil
	}
	return true, k.removeLocked(e)
}

func (k *Kept[T]) removeLocked(e *Entry[T]) error {
	k.unlistLocked(e)
	delete(k.byID, e.ID)
	if e.slot != nil {
		e.slot.Close()
	}
	k.left(e.Value)
	if e.gone = true; e.readers > 0 {
		return nil
	}
	return k.free(e.Value)
}

// Close removes all values.
func (k *Kept[T]) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	var errs []error
	for _, e := range k.byID {
		errs = append(errs, k.removeLocked(e))
	}
	return errors.Join(errs...)
}

package engine

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/task"
)

// keyedMutex is a set of locks, one for each key. Waiting for a lock can be cancelled. Unused keys take no memory.
type keyedMutex struct {
	mu   sync.Mutex
	keys map[string]*keyedLock
}

type keyedLock struct {
	token chan struct{} // holds one token while the key is unlocked
	users int
}

// lock locks the key, or returns an error when ctx ends. A task releases its worker while it waits, because the holder
// of the lock may need that worker. The caller calls unlock once.
func (t *keyedMutex) lock(ctx context.Context, key string) (unlock func(), err error) {
	t.mu.Lock()
	k := t.keys[key]
	if k == nil {
		k = &keyedLock{token: make(chan struct{}, 1)}
		k.token <- struct{}{}
		if t.keys == nil {
			t.keys = map[string]*keyedLock{}
		}
		t.keys[key] = k
	}
	k.users++
	t.mu.Unlock()
	select {
	case <-k.token:
	default:
		if err := task.Blocking(ctx, func() error { return k.wait(ctx) }); err != nil {
			t.leave(key, k)
			return nil, err
		}
	}
	return func() { k.token <- struct{}{}; t.leave(key, k) }, nil
}

// afterCalls returns a function whose nth call calls f. Its other calls have no effect.
func afterCalls(n uint32, f func()) func() {
	var calls atomic.Uint32
	return func() {
		if calls.Add(1) == n {
			f()
		}
	}
}

func (k *keyedLock) wait(ctx context.Context) error {
	select {
	case <-k.token:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *keyedMutex) leave(key string, k *keyedLock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(t.keys, key)
	}
}

package engine

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/task"
)

// keyedMutex has a lock for each key, whose waiters may leave. An unused key takes no memory.
type keyedMutex struct {
	mu   sync.Mutex
	keys map[string]*keyedLock
}

type keyedLock struct {
	token chan struct{} // holds one token while nobody has the lock
	users int
}

// lock waits for the key's lock, or until ctx ends. In a task it gives the task's worker to others meanwhile: who has
// the lock may need it. The caller calls unlock once.
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

// second returns a function whose second call calls f.
func second(f func()) func() {
	var calls atomic.Uint32
	return func() {
		if calls.Add(1) == 2 {
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

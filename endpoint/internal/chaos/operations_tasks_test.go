//go:build unix

package chaos

import (
	"context"
	"errors"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// keptRef is a reference, and the key of its value.
type keptRef struct {
	*endpoint.Ref[*tensor.Tensor]
	key uint64
}

func (w *lane) callManaged(ctx context.Context, c *endpoint.Client) error {
	key := w.key()
	ref, err := endpoint.CallManaged[*tensor.Tensor](ctx, c, w.function("object"), made{key, w.millis()})
	if err != nil {
		return err
	}
	err = w.check(ref.Value(), key)
	w.mu.Lock()
	w.refs = append(w.refs, keptRef{ref, key})
	w.mu.Unlock()
	if old, ok := w.takeRef(maxKept); ok {
		err = errors.Join(err, old.Close())
	}
	return err
}

// takeRef removes and returns a reference if there are more than above.
func (w *lane) takeRef(above int) (ref keptRef, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.refs) <= above {
		return keptRef{}, false
	}
	i := w.rng.IntN(len(w.refs))
	ref = w.refs[i]
	w.refs = slices.Delete(w.refs, i, i+1)
	return ref, true
}

func (w *lane) checkRef(ctx context.Context, _ *endpoint.Client) error {
	ref, ok := w.takeRef(0)
	if !ok {
		return nil
	}
	err := w.check(ref.Value(), ref.key)
	if err == nil && w.rng.IntN(2) == 0 {
		_, err = ref.Info(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refs = append(w.refs, ref)
	return err
}

func (w *lane) closeRef(ctx context.Context, _ *endpoint.Client) error {
	ref, ok := w.takeRef(0)
	if !ok {
		return nil
	}
	var err error
	if w.rng.IntN(2) == 0 {
		_, err = ref.Release(ctx)
	}
	return errors.Join(w.check(ref.Value(), ref.key), err, ref.Close())
}

func (w *lane) objects(ctx context.Context, c *endpoint.Client) error {
	_, err := c.Objects(ctx)
	return err
}

func (w *lane) destroy(ctx context.Context, c *endpoint.Client) error {
	objects, err := c.Objects(ctx)
	if err != nil || len(objects) == 0 {
		return err
	}
	_, err = c.Destroy(ctx, objects[w.rng.IntN(len(objects))].ID)
	return err
}

func (w *lane) callJob(ctx context.Context, c *endpoint.Client) error {
	key := w.key()
	t, err := endpoint.Call[*tensor.Tensor](ctx, c, w.function("job"), made{key, w.millis()})
	if err != nil {
		return err
	}
	return w.checkMade(t, key)
}

func (w *lane) submit(ctx context.Context, c *endpoint.Client) error {
	key := w.key()
	info, err := c.Submit(ctx, w.function("job"), made{key, w.millis()})
	if err != nil {
		return err
	}
	if w.rng.IntN(2) == 0 {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.tasks) >= maxKept {
			w.tasks = w.tasks[1:]
		}
		w.tasks = append(w.tasks, info.ID)
		return nil
	}
	if _, err := info.Wait(ctx); err != nil {
		return err
	}
	var t *tensor.Tensor
	if err := info.Result(ctx, &t); err != nil {
		return err
	}
	return w.checkMade(t, key)
}

// task returns the id of a submitted task.
func (w *lane) task() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.tasks) == 0 {
		return ""
	}
	return w.tasks[w.rng.IntN(len(w.tasks))]
}

func (w *lane) followTask(ctx context.Context, c *endpoint.Client) error {
	id := w.task()
	if id == "" {
		return nil
	}
	var last endpoint.TaskInfo
	for info, err := range c.Task(id).Events(ctx) {
		if err != nil {
			return err
		}
		if info.Seq < last.Seq {
			return found("of task %s change %d came after %d", id, info.Seq, last.Seq)
		}
		last = info
	}
	if last.State == endpoint.TaskPending || last.State == endpoint.TaskRunning {
		return found("task %s was followed to its end and is %s", id, last.State)
	}
	return nil
}

func (w *lane) result(ctx context.Context, c *endpoint.Client) error {
	id := w.task()
	if id == "" {
		return nil
	}
	var t *tensor.Tensor
	if err := c.Task(id).Result(ctx, &t); err != nil {
		return err
	}
	return t.Close()
}

func (w *lane) cancelTask(ctx context.Context, c *endpoint.Client) error {
	id := w.task()
	if id == "" {
		return nil
	}
	_, err := c.Task(id).Cancel(ctx)
	return err
}

func (w *lane) watchTasks(ctx context.Context, c *endpoint.Client) error {
	n := w.rng.IntN(20)
	for _, err := range c.WatchTasks(ctx, endpoint.TaskFilter{Mine: w.rng.IntN(2) == 0}) {
		if err != nil {
			return err
		}
		if n--; n < 0 {
			return nil
		}
	}
	return nil
}

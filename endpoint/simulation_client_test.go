package endpoint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/task"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// simClient is a client of a simulation that performs random operations.
type simClient struct {
	sim    *simulation
	name   string
	rng    *rand.Rand
	client *Client

	handles []*Handle
	refs    []*Ref[*tensor.Tensor]
	tasks   []simTask

	watcher *Watcher
	watched sync.WaitGroup
	mu      sync.Mutex
	last    map[string]Event // the newest event of each name of its owner
}

// simTask is a task that was submitted and not observed to its end.
type simTask struct {
	id, server string
	argument   int64
}

// simTensors describes the published models: all elements of both tensors are the stamp.
var simTensors = []module.NamedSpec{
	{Name: "a", DType: tensor.Int64, Shape: tensor.Shape{5}},
	{Name: "b", DType: tensor.Int64, Shape: tensor.Shape{2, 3}},
}

// simStateDict returns an owned state dict whose elements are all stamp.
func simStateDict(dev driver.Device, stamp int64) (*module.StateDict, error) {
	sd, err := module.New(dev, simTensors)
	if err != nil {
		return nil, err
	}
	for _, t := range sd.All() {
		values, err := tensor.Data[int64](t)
		if err != nil {
			return nil, errors.Join(err, sd.Close())
		}
		for i := range values {
			values[i] = stamp
		}
	}
	return sd, nil
}

// simStamp returns the stamp of a state dict.
func simStamp(sd *module.StateDict) (stamp int64, err error) {
	for name, t := range sd.All() {
		values, err := tensor.Data[int64](t)
		if err != nil {
			return 0, err
		}
		for _, v := range values {
			if stamp != 0 && v != stamp {
				return 0, fmt.Errorf("tensor %s has element %d beside %d: it is of two versions", name, v, stamp)
			}
			stamp = v
		}
	}
	return stamp, nil
}

// simExpected are the errors that operations may return because of disturbances, or because another client was faster.
var simExpected = []error{
	ErrUnavailable, ErrNotFound, ErrStale, ErrClosed, context.DeadlineExceeded, task.ErrNotFound, task.ErrNotFinished, task.ErrCancelled,
}

// run performs n operations.
func (c *simClient) run(n int) {
	operations := []func(context.Context) error{
		c.publish, c.publish, c.withdraw, c.acquire, c.acquire, c.acquire, c.check, c.release, c.call, c.call, c.callCached, c.callCached,
		c.invalidate, c.submit, c.submit, c.wait, c.cancel, c.hold, c.hold, c.giveBack, c.destroy, c.watch, c.list,
	}
	for range n {
		time.Sleep(time.Duration(c.rng.IntN(4000)) * time.Microsecond)
		// Some contexts end while the answer is in transit.
		limit := time.Duration(c.rng.IntN(900)+20) * time.Microsecond
		if c.rng.IntN(4) > 0 {
			limit = time.Duration(c.rng.IntN(5000)+1) * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		err := operations[c.rng.IntN(len(operations))](ctx)
		cancel()
		if err != nil && !slices.ContainsFunc(simExpected, func(e error) bool { return errors.Is(err, e) }) {
			c.sim.model.fail("%s: %v", c.name, err)
		}
	}
}

// modelName returns one of the few names.
func (c *simClient) modelName() string { return []string{"x", "y"}[c.rng.IntN(2)] }

// span times an operation and returns the id of its server, or "" if the server may have changed meanwhile.
func (c *simClient) span(operation func()) (simSpan, string) {
	server, begin := c.client.ServerID(), time.Now()
	operation()
	if c.client.ServerID() != server {
		server = ""
	}
	return simSpan{begin, time.Now()}, server
}

func (c *simClient) publish(ctx context.Context) error {
	stamp, name := c.sim.model.number(), c.modelName()
	sd, err := simStateDict(c.sim.dev, stamp)
	if err != nil {
		return err
	}
	defer sd.Close()
	c.sim.model.publishes(stamp, name)
	var version uint64
	_, server := c.span(func() { version, err = c.client.Publish(ctx, name, sd, PublishOptions{}) })
	c.sim.note("%s published %s as version %d with %d: %v", c.name, name, version, stamp, err)
	if err == nil {
		c.sim.model.published(stamp, server, version)
	}
	return err
}

func (c *simClient) withdraw(ctx context.Context) (err error) {
	name, before := c.modelName(), c.client.ServerID()
	span, server := c.span(func() { err = c.client.Withdraw(ctx, name) })
	c.sim.note("%s withdrew %s: %v", c.name, name, err)
	switch {
	case err == nil && server != "":
		c.sim.model.withdrew(simName{server, name}, span, true)
	case errors.Is(err, ErrNotFound) && server != "":
		c.sim.model.absent(simName{server, name}, span)
	case !errors.Is(err, ErrNotFound):
		for _, id := range []string{before, c.client.ServerID(), c.sim.serverID()} {
			c.sim.model.withdrew(simName{id, name}, span, false)
		}
	}
	return err
}

func (c *simClient) acquire(ctx context.Context) (err error) {
	var h *Handle
	name, opts := c.modelName(), AcquireOptions{Wait: c.rng.IntN(4) == 0}
	span, server := c.span(func() { h, err = c.client.Acquire(ctx, name, opts) })
	if err != nil {
		c.sim.note("%s did not acquire %s: %v", c.name, name, err)
		if errors.Is(err, ErrNotFound) && !errors.Is(err, context.DeadlineExceeded) && server != "" {
			c.sim.model.absent(simName{server, name}, span)
		}
		return err
	}
	stamp, err := simStamp(h.StateDict())
	c.sim.note("%s acquired version %d of %s with %d: %v", c.name, h.Version(), name, stamp, err)
	c.sim.model.acquired(simName{h.ServerID(), name}, h.Version(), stamp, span)
	c.handles = append(c.handles, h)
	return err
}

// check reads a held version: it is unchanged, whatever happened to its server.
func (c *simClient) check(context.Context) error {
	if len(c.handles) == 0 {
		return nil
	}
	h := c.handles[c.rng.IntN(len(c.handles))]
	stamp, err := simStamp(h.StateDict())
	if err == nil {
		c.sim.model.holds(simName{h.ServerID(), h.Name()}, h.Version(), stamp)
	}
	return err
}

// takeAny removes an item at random.
func takeAny[T any](rng *rand.Rand, list *[]T) (item T, ok bool) {
	if len(*list) == 0 {
		return item, false
	}
	i := rng.IntN(len(*list))
	item = (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return item, true
}

func (c *simClient) release(context.Context) error {
	h, ok := takeAny(c.rng, &c.handles)
	if !ok {
		return nil
	}
	c.sim.note("%s releases version %d of %s", c.name, h.Version(), h.Name())
	return h.Close()
}

func (c *simClient) call(ctx context.Context) error {
	argument := c.sim.model.number()
	result, err := Call[int64](ctx, c.client, "once", argument)
	if err == nil {
		c.sim.model.answered(argument, result)
	}
	return err
}

func (c *simClient) key() string { return fmt.Sprint("key ", c.rng.IntN(2)) }

func (c *simClient) callCached(ctx context.Context) (err error) {
	var number int64
	key := c.key()
	span, _ := c.span(func() { number, err = Call[int64](ctx, c.client, "cached", key) })
	c.sim.note("%s got %d for %s: %v", c.name, number, key, err)
	if err == nil {
		c.sim.model.cached(key, number, span)
	}
	return err
}

func (c *simClient) invalidate(ctx context.Context) (err error) {
	key := c.key()
	span, server := c.span(func() { _, err = c.client.InvalidateCall(ctx, "cached", key) })
	c.sim.note("%s invalidated %s: %v", c.name, key, err)
	if err == nil && server != "" {
		c.sim.model.invalidated(server, key, span)
	}
	return err
}

func (c *simClient) submit(ctx context.Context) error {
	argument := c.sim.model.number()
	var job *Task
	var err error
	_, server := c.span(func() { job, err = c.client.Submit(ctx, "task", argument) })
	c.sim.note("%s submitted %d: %v", c.name, argument, err)
	if err == nil {
		c.tasks = append(c.tasks, simTask{job.ID, server, argument})
	}
	return err
}

func (c *simClient) wait(ctx context.Context) error {
	t, ok := takeAny(c.rng, &c.tasks)
	if !ok {
		return nil
	}
	info, err := c.client.Task(t.id).Wait(ctx)
	if err != nil || info.State != TaskCompleted {
		return err
	}
	var result int64
	if err := c.client.Task(t.id).Result(ctx, &result); err != nil {
		return err
	}
	c.sim.model.answered(t.argument, result)
	return nil
}

func (c *simClient) cancel(ctx context.Context) error {
	t, ok := takeAny(c.rng, &c.tasks)
	if !ok {
		return nil
	}
	cancelled, err := c.client.Task(t.id).Cancel(ctx)
	if err != nil || !cancelled {
		return err
	}
	info, err := c.client.Task(t.id).Wait(ctx)
	if err == nil && info.State == TaskRunning {
		c.sim.model.fail("%s: task %d runs after it was waited for", c.name, t.argument)
	}
	return err
}

func (c *simClient) hold(ctx context.Context) error {
	ref, err := CallManaged[*tensor.Tensor](ctx, c.client, "object", c.key())
	if err != nil {
		return err
	}
	c.sim.note("%s holds object %s", c.name, ref.ID())
	c.refs = append(c.refs, ref)
	return nil
}

func (c *simClient) giveBack(ctx context.Context) error {
	ref, ok := takeAny(c.rng, &c.refs)
	if !ok {
		return nil
	}
	if c.rng.IntN(2) == 0 {
		return ref.Close()
	}
	_, err := ref.Release(ctx)
	return errors.Join(err, ref.Close())
}

func (c *simClient) destroy(ctx context.Context) error {
	if len(c.refs) == 0 || c.rng.IntN(3) > 0 {
		return nil
	}
	ref := c.refs[c.rng.IntN(len(c.refs))]
	_, err := c.client.Destroy(ctx, ref.ID())
	c.sim.note("%s destroyed object %s: %v", c.name, ref.ID(), err)
	return err
}

// watch starts to watch all names, or ends that.
func (c *simClient) watch(ctx context.Context) error {
	if c.watcher != nil {
		if c.rng.IntN(4) == 0 {
			c.unwatch()
		}
		return nil
	}
	w, err := c.client.Watch(ctx)
	if err != nil {
		return err
	}
	c.watcher, c.last = w, map[string]Event{}
	c.watched.Go(func() { c.hear(w) })
	return nil
}

func (c *simClient) unwatch() {
	if c.watcher != nil {
		c.watcher.Close()
		c.watched.Wait()
		c.watcher = nil
	}
}

// next waits for the next event.
func (w *Watcher) next(ctx context.Context) (Event, error) {
	for e, err := range w.Events(ctx) {
		return e, err
	}
	panic("a watch ends with an error")
}

// hear checks that the events of a name at one owner never go backwards.
func (c *simClient) hear(w *Watcher) {
	for {
		e, err := w.next(context.Background())
		if err != nil {
			return
		}
		if e.Kind != EventPublished && e.Kind != EventWithdrawn {
			continue
		}
		c.mu.Lock()
		if before, ok := c.last[e.Name]; ok && before.Server == e.Server && before.Version > e.Version {
			c.sim.model.fail("%s heard of version %d of %s after version %d", c.name, e.Version, e.Name, before.Version)
		}
		c.last[e.Name] = e
		c.mu.Unlock()
	}
}

// list checks the result of List.
func (c *simClient) list(ctx context.Context) error {
	models, err := c.client.List(ctx)
	for _, m := range models {
		for i, v := range m.Versions {
			if i > 0 && v.Version >= m.Versions[i-1].Version {
				c.sim.model.fail("%s: the versions of %s are not in order: %v", c.name, m.Name, m.Versions)
			}
		}
	}
	return err
}

// close releases everything.
func (c *simClient) close() error {
	c.unwatch()
	var errs []error
	for _, h := range c.handles {
		errs = append(errs, h.Close())
	}
	for _, r := range c.refs {
		errs = append(errs, r.Close())
	}
	return errors.Join(append(errs, c.client.Close())...)
}

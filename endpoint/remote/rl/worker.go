package rl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// Worker receives parameters and sends data. Its methods are safe for concurrent use.
type Worker struct {
	*run
	here   *presence
	id     string // unique to this worker; part of its data's message ids
	added  atomic.Uint64
	events *bins.Listener
	stop   context.CancelFunc

	mu      sync.Mutex
	current *Parameters // last fetched; nil before the first
	news    chan struct{}
	newest  int64 // newest known version
	done    chan struct{}
	deaf    error // why events ended; set before done is closed
}

// NewWorker joins a run as a worker. Published parameters are available at once. The caller closes it.
func NewWorker(ctx context.Context, opts Options) (*Worker, error) {
	r, err := openRun(ctx, opts, true)
	if err != nil {
		return nil, err
	}
	w := &Worker{run: r, id: nuid.Next(), newest: -1, news: make(chan struct{}), done: make(chan struct{})}
	// The worker listens before it looks, so it cannot miss a version in between.
	if w.events, err = r.store.Listen(ctx, r.bin()); err != nil {
		return nil, err
	}
	if _, err = w.look(ctx); err == nil {
		w.here, err = r.join(ctx, "worker")
	}
	if err != nil {
		return nil, errors.Join(err, w.events.Close())
	}
	hearing, stop := context.WithCancel(context.Background())
	w.stop = stop
	go w.hear(hearing)
	return w, nil
}

// Close leaves the run. Parameters that callers hold stay valid until they close them. Data stays for the trainer.
func (w *Worker) Close() error {
	w.here.leave()
	w.stop()
	err := w.events.Close()
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current != nil {
		err = errors.Join(err, w.current.Close())
		w.current = nil
	}
	return err
}

// hear receives events of new versions until the worker is closed.
func (w *Worker) hear(ctx context.Context) {
	defer close(w.done)
	for event, err := range w.events.Events(ctx) {
		if err != nil {
			if w.deaf = err; ctx.Err() != nil {
				w.deaf = bins.ErrClosed
			}
			return
		}
		if event.Items != 0 {
			w.lookFor(ctx, event)
		}
	}
}

// Number of looks after an event, at intervals of up to a second. After a gap, there may be nothing new to find.
const (
	maxLooks = 60
	gapLooks = 8
)

// lookFor looks until it finds the change that an event reports. The replica that serves the read may not have it yet,
// and there will be no second event.
func (w *Worker) lookFor(ctx context.Context, event bins.Event) {
	looks := maxLooks
	if event.Op == "" {
		looks = gapLooks
	}
	for attempt := range looks {
		sequence, err := w.look(ctx)
		if err != nil && ctx.Err() == nil {
			w.log.Warn("rl: could not look up new parameters", "run", w.opts.Run, "error", err)
		}
		if err == nil && event.Op != "" && sequence >= event.Sequence || natslink.Pause(ctx, attempt) != nil {
			return
		}
	}
}

// look reads the pointer, wakes all waiters if its version is new, and returns its sequence number.
func (w *Worker) look(ctx context.Context) (sequence uint64, err error) {
	p, sequence, err := w.readPointer(ctx)
	if errors.Is(err, ErrNoParameters) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.Version > w.newest {
		w.newest = p.Version
		close(w.news)
		w.news = make(chan struct{})
	}
	return sequence, nil
}

// Newest returns the newest version that the worker knows, or -1 before the first.
func (w *Worker) Newest() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.newest
}

// Version returns the version that the worker fetched last, or -1 before the first. The worker's data carries it.
func (w *Worker) Version() int64 { return w.here.version.Load() }

// Latest returns the newest parameters, or [ErrNoParameters]. If the worker has that version already, Latest sends no
// message. The caller closes the result. Older parameters that it holds stay valid.
func (w *Worker) Latest(ctx context.Context) (*Parameters, error) {
	for attempt := 0; ; attempt++ {
		w.mu.Lock()
		if w.current != nil && w.current.version >= w.newest {
			p := w.current.clone()
			w.mu.Unlock()
			return p, nil
		}
		newest := w.newest
		w.mu.Unlock()
		to, _, err := w.readPointer(ctx)
		if err != nil {
			return nil, err
		}
		if to.Version < newest && attempt < maxLooks { // the replica does not have it yet
			if err := natslink.Pause(ctx, attempt); err != nil {
				return nil, context.Cause(ctx)
			}
			continue
		}
		p, err := w.fetch(ctx, to)
		if err == nil {
			return w.adopt(p), nil
		}
		// The trainer may have removed these bytes, or the owner this version, because there is a newer one.
		again, _, againErr := w.readPointer(ctx)
		if againErr != nil || again.Version == to.Version {
			return nil, gone(err)
		}
	}
}

func gone(err error) error {
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return fmt.Errorf("%w: the bytes were removed, and no newer version is published", err)
	}
	return err
}

// adopt makes p the result of later calls of Latest, unless the worker has newer parameters. It returns a reference to
// the newest for the caller.
func (w *Worker) adopt(p *Parameters) *Parameters {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current == nil || w.current.version < p.version {
		if w.current != nil {
			_ = w.current.Close()
		}
		w.current = p
		w.newest = max(w.newest, p.version)
	} else {
		_ = p.Close()
	}
	w.here.version.Store(w.current.version)
	w.here.shared.Store(w.current.shared)
	return w.current.clone()
}

// Await waits for parameters with a version above after and returns the newest. With -1 it waits for the first. If ctx
// ends first, it returns the cause of ctx, and parameters that the caller holds stay valid. The caller closes the
// result.
func (w *Worker) Await(ctx context.Context, after int64) (*Parameters, error) {
	for {
		w.mu.Lock()
		newest, news := w.newest, w.news
		w.mu.Unlock()
		if newest > after {
			return w.Latest(ctx)
		}
		select {
		case <-news:
		case <-w.done:
			return nil, fmt.Errorf("run %q: %w", w.opts.Run, w.deaf)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Add sends data to the trainer, marked with the version of the parameters that the worker fetched last. While the
// trainer's queue is full it waits until ctx ends; then the error is bins.ErrFull. Added data survives the worker and a
// restart of the server.
func (w *Worker) Add(ctx context.Context, v bins.Value) error {
	id := fmt.Sprintf("%s.%d", w.id, w.added.Add(1))
	_, err := w.queue.Push(ctx, topic(w.Version())+"."+w.opts.Name, v, bins.WithID(id))
	return err
}

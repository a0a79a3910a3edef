package rl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/module"
)

// Trainer publishes parameters and gets the data of all workers. Its methods are safe for concurrent use.
type Trainer struct {
	*run
	here *presence

	mu       sync.Mutex // held while a version is published
	version  int64      // newest; -1 before the first
	sequence uint64     // of the pointer to it; the condition of the next
	purged   int64      // data of versions below it is gone
	dropped  uint64
}

// NewTrainer joins a run as its trainer, with the versions of the trainer before it. The caller closes it.
func NewTrainer(ctx context.Context, opts Options) (*Trainer, error) {
	r, err := openRun(ctx, opts)
	if err != nil {
		return nil, err
	}
	t := &Trainer{run: r, version: -1}
	p, sequence, err := r.readPointer(ctx)
	switch {
	case err == nil:
		t.version, t.sequence = p.Version, sequence
		t.purged = max(t.oldest(), 0)
	case !errors.Is(err, ErrNoParameters):
		return nil, err
	}
	if t.here, err = r.join(ctx, "trainer"); err != nil {
		return nil, err
	}
	t.here.version.Store(t.version)
	t.here.shared.Store(t.opts.Owner != nil)
	return t, nil
}

// Close leaves the run. Parameters and data stay.
func (t *Trainer) Close() error {
	t.here.leave()
	return nil
}

// Version returns the newest version; -1 before the first.
func (t *Trainer) Version() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.version
}

// Publish makes sd the newest parameters and returns their version. It borrows sd; with an owner, publishing freezes
// sd's memory against new writers, as endpoint.Client.Publish says. On an error the workers see nothing new. Errors:
// [ErrSuperseded], bins.ErrOutcomeUnknown, those of the owner.
func (t *Trainer) Publish(ctx context.Context, sd *module.StateDict) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := pointer{Version: t.version + 1, Trainer: t.opts.Name}
	if err := t.store1(ctx, &p, sd); err != nil {
		return 0, fmt.Errorf("publish parameters %d of the run %q: %w", p.Version, t.opts.Run, err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	sequence, err := t.store.Put(ctx, t.bin(), bins.Value{Type: pointerType, Body: text}, bins.IfLast(t.sequence))
	if errors.Is(err, bins.ErrConflict) {
		err = fmt.Errorf("run %q: %w", t.opts.Run, ErrSuperseded)
	}
	if err != nil {
		if !errors.Is(err, bins.ErrOutcomeUnknown) {
			t.discard(p)
		}
		return 0, err
	}
	t.version, t.sequence = p.Version, sequence
	t.here.version.Store(p.Version)
	t.tidy(ctx)
	return p.Version, nil
}

// store1 puts the bytes where workers will look for them, and says in p where that is.
func (t *Trainer) store1(ctx context.Context, p *pointer, sd *module.StateDict) (err error) {
	if t.opts.Owner != nil {
		p.Model = t.model()
		if p.ModelVersion, err = t.opts.Owner.Publish(ctx, p.Model, sd); err != nil {
			return err
		}
		p.Server = t.opts.Owner.ServerID()
	}
	if t.opts.LocalOnly {
		return nil
	}
	// Two trainers that do not know of each other may store the same version: the name is the trainer's own too.
	p.Object = fmt.Sprintf("v%d.%s", p.Version, t.opts.Name)
	p.Bytes, err = t.upload(ctx, p.Object, sd)
	return err
}

// discard removes the bytes of parameters that nobody was told of.
func (t *Trainer) discard(p pointer) {
	if p.Object == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.opts.Presence)
	defer cancel()
	if err := t.objects.Delete(ctx, p.Object); err != nil {
		t.log.Warn("rl: bytes of parameters that are not published stay", "run", t.opts.Run, "object", p.Object, "error", err)
	}
}

// oldest is the oldest version whose data the trainer takes.
func (t *Trainer) oldest() int64 {
	if t.opts.Staleness < 0 {
		return -1
	}
	return t.version - t.opts.Staleness
}

// tidyTimeout bounds tidy: the parameters are published already.
const tidyTimeout = 5 * time.Second

// tidy removes what is too old: bytes of parameters, and data. What fails is done with the next version.
func (t *Trainer) tidy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, tidyTimeout) // a server may be lost with what it was asked for
	defer cancel()
	for t.opts.Staleness >= 0 && t.purged < t.oldest() {
		before, _ := t.queue.Len(ctx)
		if err := t.queue.Purge(ctx, topic(t.purged)+".>"); err != nil {
			t.log.Debug("rl: old data stays", "run", t.opts.Run, "version", t.purged, "error", err)
			break
		}
		if after, err := t.queue.Len(ctx); err == nil && after < before {
			t.dropped += uint64(before - after)
		}
		t.purged++
	}
	infos, err := t.objects.List(ctx)
	if err != nil {
		return
	}
	for _, info := range infos {
		text, _, _ := strings.Cut(strings.TrimPrefix(info.Name, "v"), ".")
		version, err := strconv.ParseInt(text, 10, 64)
		if err != nil || version > t.version-int64(t.opts.Keep) {
			continue
		}
		if err := t.objects.Delete(ctx, info.Name); err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
			t.log.Debug("rl: old parameters stay", "run", t.opts.Run, "object", info.Name, "error", err)
		}
	}
}

// topic is what data of a version is queued under.
func topic(version int64) string { return "v" + strconv.FormatInt(version, 10) }

// Sample is data of a worker. The trainer calls Ack when it has used it; otherwise it is delivered again.
type Sample struct {
	*bins.Delivery
	// Version is that of the parameters that the worker had when it made the data; -1 where it had none.
	Version int64
	// Worker is the name of the worker.
	Worker string
}

// Pull returns at least one and at most max samples of versions within the staleness window, oldest first, and waits
// for the first until ctx ends. Older ones are dropped and counted.
func (t *Trainer) Pull(ctx context.Context, max int) ([]Sample, error) {
	for {
		deliveries, err := t.queue.Pull(ctx, max)
		if err != nil {
			return nil, err
		}
		t.mu.Lock()
		oldest := t.oldest()
		t.mu.Unlock()
		var samples []Sample
		for _, d := range deliveries {
			sample, err := parseSample(d)
			if err == nil && (t.opts.Staleness < 0 || sample.Version >= oldest) {
				samples = append(samples, sample)
				continue
			}
			if err := d.Drop("older than the trainer takes"); err != nil {
				t.log.Debug("rl: old data is not dropped", "run", t.opts.Run, "error", err)
			}
			t.mu.Lock()
			t.dropped++
			t.mu.Unlock()
		}
		if len(samples) > 0 {
			return samples, nil
		}
	}
}

func parseSample(d *bins.Delivery) (Sample, error) {
	text, worker, ok := strings.Cut(strings.TrimPrefix(d.Topic, "v"), ".")
	version, err := strconv.ParseInt(text, 10, 64)
	if !ok || err != nil {
		return Sample{}, fmt.Errorf("%w: topic %q", bins.ErrCorrupt, d.Topic)
	}
	return Sample{Delivery: d, Version: version, Worker: worker}, nil
}

// Waiting returns how many samples wait or are not acknowledged yet.
func (t *Trainer) Waiting(ctx context.Context) (int, error) { return t.queue.Len(ctx) }

// Dropped returns how many samples were too old, since this trainer began.
func (t *Trainer) Dropped() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dropped
}

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
	"github.com/nats-io/nuid"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
	"github.com/sharedtensor/sharedtensor/module"
)

// Trainer publishes parameters and receives the data of all workers. Its methods are safe for concurrent use.
type Trainer struct {
	*run
	here *presence

	publishing sync.Mutex // held while a version is published
	unsure     *pointer   // published with an unknown outcome; nil if there is none
	swept      time.Time  // time of the last sweep

	purged int64 // data of older versions is removed

	mu       sync.Mutex // guards the fields below
	version  int64      // newest version; -1 before the first
	sequence uint64     // of the newest pointer; the condition of the next one
	place    place      // of the newest version
	dropped  uint64
	held     *endpoint.Handle // of the newest version in the owner's memory, until a later one is announced; nil for none
	left     bool
}

// NewTrainer joins a run as its trainer and continues the versions of the previous trainer. The caller closes it.
func NewTrainer(ctx context.Context, opts Options) (*Trainer, error) {
	r, err := openRun(ctx, opts, false)
	if err != nil {
		return nil, err
	}
	t := &Trainer{run: r, version: -1}
	p, sequence, err := r.readPointer(ctx)
	switch {
	case err == nil:
		t.version, t.sequence, t.place = p.Version, sequence, p.place
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
	t.mu.Lock()
	held := t.held
	t.held, t.left = nil, true
	t.mu.Unlock()
	return closeHandle(held)
}

// Version returns the newest version, or -1 before the first.
func (t *Trainer) Version() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.version
}

// Publish makes sd the newest parameters and returns their version. It borrows sd. With an owner, publishing freezes
// sd's memory against new writers, as described at endpoint.Client.Publish. After an error, workers see nothing new.
// The exception is bins.ErrOutcomeUnknown: the next Publish then finds out whether this version is published. Other
// errors are [ErrSuperseded] and the errors of the owner.
func (t *Trainer) Publish(ctx context.Context, sd *module.StateDict) (int64, error) {
	t.publishing.Lock()
	defer t.publishing.Unlock()
	for attempt := 0; ; attempt++ {
		version, err := t.publishOnce(ctx, sd)
		// The previous version may have been published only now. Then this one needs the next number.
		if !errors.Is(err, errSettled) {
			return version, err
		}
		if err := natslink.Pause(ctx, attempt); err != nil {
			return 0, context.Cause(ctx)
		}
	}
}

// errSettled means that an earlier version with an unknown outcome turned out to be published.
var errSettled = errors.New("an earlier version is published")

func (t *Trainer) publishOnce(ctx context.Context, sd *module.StateDict) (int64, error) {
	if err := t.settle(ctx); err != nil {
		return 0, err
	}
	t.holdNewest(ctx)
	version, last := t.newest()
	p := pointer{Version: version + 1, Trainer: t.opts.Name, ID: nuid.Next()}
	if err := t.storeBytes(ctx, &p, sd); err != nil {
		t.discard(p)
		return 0, fmt.Errorf("publish parameters %d of the run %q: %w", p.Version, t.opts.Run, err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.discard(p)
		return 0, err
	}
	sequence, err := t.store.Put(ctx, t.bin(), bins.Value{Type: pointerType, Body: text}, bins.IfLast(last))
	switch {
	case errors.Is(err, bins.ErrOutcomeUnknown):
		t.unsure = &p
		return 0, err
	case errors.Is(err, bins.ErrConflict):
		return t.conflict(ctx, p)
	case err != nil:
		t.discard(p)
		return 0, err
	}
	if t.unsure != nil { // its condition can no longer hold
		t.discard(*t.unsure)
		t.unsure = nil
	}
	t.setNewest(p, sequence)
	t.tidy(ctx)
	return p.Version, nil
}

func (t *Trainer) newest() (version int64, sequence uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.version, t.sequence
}

// setNewest records that p is announced, and releases the version before it.
func (t *Trainer) setNewest(p pointer, sequence uint64) {
	t.mu.Lock()
	held := t.held
	t.version, t.sequence, t.place, t.held = p.Version, sequence, p.place, nil
	t.mu.Unlock()
	t.here.version.Store(p.Version)
	_ = closeHandle(held) // the version may end
}

// holdNewest keeps the newest version in the owner's memory until a later one is announced, also if publishing one fails.
// The owner frees a version without readers as soon as the next one is published, but workers learn of the next one later.
func (t *Trainer) holdNewest(ctx context.Context) {
	t.mu.Lock()
	at, held := t.place, t.held
	t.mu.Unlock()
	if held != nil || t.opts.Owner == nil || at.Server == "" || at.Server != t.opts.Owner.ServerID() {
		return
	}
	handle, err := t.opts.Owner.Acquire(ctx, at.Model, endpoint.AcquireOptions{Version: at.ModelVersion})
	if err != nil { // another process has withdrawn or replaced it
		t.log.Debug("rl: cannot hold the newest parameters", "run", t.opts.Run, "error", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left {
		_ = handle.Close()
		return
	}
	t.held = handle
}

// closeHandle closes a handle, which may be nil.
func closeHandle(h *endpoint.Handle) error {
	if h == nil {
		return nil
	}
	return h.Close()
}

// conflict finds out why p was refused. There are three reasons: an unanswered attempt has already stored p, a version
// with an unknown outcome was stored, or another trainer has published.
func (t *Trainer) conflict(ctx context.Context, p pointer) (int64, error) {
	now, sequence, err := t.readPointer(ctx)
	switch {
	case err != nil && !errors.Is(err, ErrNoParameters):
		t.unsure = &p
		return 0, fmt.Errorf("%w: %w", bins.ErrOutcomeUnknown, err)
	case err == nil && now.ID == p.ID:
		t.setNewest(p, sequence)
		t.tidy(ctx)
		return p.Version, nil
	}
	t.discard(p)
	if t.unsure == nil {
		return 0, fmt.Errorf("run %q: %w", t.opts.Run, ErrSuperseded)
	}
	if err := t.settle(ctx); err != nil {
		return 0, err
	}
	return 0, errSettled
}

// settle finds out whether the version with an unknown outcome is published. If it is not, it may still be published
// later.
func (t *Trainer) settle(ctx context.Context) error {
	if t.unsure == nil {
		return nil
	}
	p, sequence, err := t.readPointer(ctx)
	if err != nil && !errors.Is(err, ErrNoParameters) {
		return err
	}
	_, last := t.newest()
	switch {
	case err == nil && p.ID == t.unsure.ID:
		t.setNewest(p, sequence)
		t.unsure = nil
	case sequence > last:
		return fmt.Errorf("run %q: %w", t.opts.Run, ErrSuperseded)
	}
	return nil
}

// storeBytes stores the bytes for the workers and records their location in p.
func (t *Trainer) storeBytes(ctx context.Context, p *pointer, sd *module.StateDict) (err error) {
	if t.opts.Owner != nil {
		p.Model = t.model()
		if p.ModelVersion, err = t.opts.Owner.Publish(ctx, p.Model, sd, endpoint.PublishOptions{}); err != nil {
			return err
		}
		p.Server = t.opts.Owner.ServerID()
	}
	if t.opts.LocalOnly {
		return nil
	}
	// Two trainers may store the same version, even under the same name. Each removes only its own object.
	p.Object = fmt.Sprintf("v%d.%s.%s", p.Version, t.opts.Name, p.ID)
	p.Bytes, err = t.upload(ctx, p.Object, sd)
	return err
}

// discard removes the bytes of parameters that are not published.
func (t *Trainer) discard(p pointer) {
	if p.Object == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), tidyTimeout)
	defer cancel()
	if err := t.objects.Remove(ctx, p.Object); err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
		t.log.Warn("rl: bytes of unpublished parameters remain", "run", t.opts.Run, "object", p.Object, "error", err)
	}
}

// oldest returns the oldest version whose data the trainer accepts.
func (t *Trainer) oldest() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.opts.Staleness < 0 {
		return -1
	}
	return t.version - t.opts.Staleness
}

const (
	// tidyTimeout limits tidy, which runs after the parameters are published.
	tidyTimeout = 5 * time.Second
	// sweepEvery is the time between sweeps. sweepGrace exceeds the longest upload.
	sweepEvery = 10 * time.Minute
	sweepGrace = time.Hour
)

// tidy removes old parameters and data. Failed removals are repeated with the next version.
func (t *Trainer) tidy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, tidyTimeout)
	defer cancel()
	t.purgeData(ctx)
	infos, err := t.objects.Infos(ctx)
	if err != nil {
		return
	}
	newest, _ := t.newest()
	for _, info := range infos {
		text, _, _ := strings.Cut(strings.TrimPrefix(info.Name, "v"), ".")
		version, err := strconv.ParseInt(text, 10, 64)
		if err != nil || info.Deleted || version > newest-int64(t.opts.Keep) {
			continue
		}
		if err := t.objects.Remove(ctx, info.Name); err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
			t.log.Debug("rl: old parameters remain", "run", t.opts.Run, "object", info.Name, "error", err)
		}
	}
	if time.Since(t.swept) < sweepEvery {
		return
	}
	if _, err := t.objects.Sweep(ctx, sweepGrace, nil); err != nil {
		t.log.Debug("rl: pieces of unfinished uploads remain", "run", t.opts.Run, "error", err)
		return
	}
	t.swept = time.Now()
}

// purgeData removes the data of versions outside the staleness window.
func (t *Trainer) purgeData(ctx context.Context) {
	for oldest := t.oldest(); t.opts.Staleness >= 0 && t.purged < oldest; t.purged++ {
		before, _ := t.queue.Len(ctx)
		if err := t.queue.Purge(ctx, topic(t.purged)+".>"); err != nil {
			t.log.Debug("rl: old data remains", "run", t.opts.Run, "version", t.purged, "error", err)
			return
		}
		if after, err := t.queue.Len(ctx); err == nil && after < before {
			t.mu.Lock()
			t.dropped += uint64(before - after)
			t.mu.Unlock()
		}
	}
}

// topic returns the queue topic for data of a version.
func topic(version int64) string { return "v" + strconv.FormatInt(version, 10) }

// Sample is data of a worker. The trainer calls Ack when it has used it. Otherwise it is delivered again.
type Sample struct {
	*bins.Delivery
	// Version is the version of the parameters that the worker had when it made the data, or -1 if it had none.
	Version int64
	// Worker is the name of the worker.
	Worker string
}

// Pull returns at least one and at most max samples of versions within the staleness window, oldest first. It waits for
// the first one until ctx ends. Older samples are dropped and counted.
func (t *Trainer) Pull(ctx context.Context, max int) ([]Sample, error) {
	for {
		deliveries, err := t.queue.Pull(ctx, max)
		if err != nil {
			return nil, err
		}
		oldest := t.oldest()
		var samples []Sample
		for _, d := range deliveries {
			sample, err := parseSample(d)
			if err == nil && (t.opts.Staleness < 0 || sample.Version >= oldest) {
				samples = append(samples, sample)
				continue
			}
			if err := d.Drop("older than the trainer takes"); err != nil {
				t.log.Debug("rl: could not drop old data", "run", t.opts.Run, "error", err)
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

// Waiting returns the number of samples that are not acknowledged yet.
func (t *Trainer) Waiting(ctx context.Context) (int, error) { return t.queue.Len(ctx) }

// Dropped returns the number of samples that this trainer has dropped because they were too old.
func (t *Trainer) Dropped() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dropped
}

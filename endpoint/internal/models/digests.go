package models

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// digester computes the digests of the versions for which that was asked, the oldest first, one at a time on one
// goroutine. It trusts nobody for them: it reads every byte. What is to be computed or was has an entry as long as the
// catalog has the version.
type digester struct {
	of *Models

	mu        sync.Mutex
	jobs      map[*module.StateDict]*digestJob // by the state dict that the catalog has
	byVersion map[versionKey]*digestJob        // those whose number is known
	queue     []*digestJob
	running   bool // the goroutine does
	closed    bool
	work      sync.WaitGroup // the goroutine; added to under mu while not closed
}

// versionKey names a version of a server.
type versionKey struct {
	name    string
	version uint64
}

// digestJob is the digests of one version.
type digestJob struct {
	sd   *module.StateDict // a clone, which whoever finishes the job closes
	ctx  context.Context   // ends with the version
	stop context.CancelCauseFunc
	done chan struct{}

	// Guarded by digester.mu.
	key   versionKey // zero before the version is published
	begun bool

	// Set before done is closed.
	whole   module.Digest
	tensors []byte
	err     error
}

// errVersionGone is why digests are not computed of a version that the catalog does not have any more.
var errVersionGone = fmt.Errorf("%w: the version went before its digests were computed", status.ErrNotFound)

// add prepares the digests of a state dict, which it borrows, before the catalog has it.
func (d *digester) add(sd *module.StateDict) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	if d.jobs == nil {
		d.jobs, d.byVersion = map[*module.StateDict]*digestJob{}, map[versionKey]*digestJob{}
	}
	j := &digestJob{sd: sd.Clone(), done: make(chan struct{})}
	j.ctx, j.stop = context.WithCancelCause(context.Background())
	d.jobs[sd] = j
}

// published notes the version number of a state dict, and queues its digests. It does nothing if the catalog has
// dropped the state dict already.
func (d *digester) published(sd *module.StateDict, name string, version uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j := d.jobs[sd]
	if j == nil || d.closed {
		return
	}
	j.key = versionKey{name, version}
	d.byVersion[j.key] = j
	d.queue = append(d.queue, j)
	if !d.running {
		d.running = true
		d.work.Go(d.run)
	}
}

// drop forgets a state dict that the catalog does not have any more, and stops what is done for it.
func (d *digester) drop(sd *module.StateDict) {
	d.mu.Lock()
	j := d.jobs[sd]
	if j == nil {
		d.mu.Unlock()
		return
	}
	delete(d.jobs, sd)
	if d.byVersion[j.key] == j {
		delete(d.byVersion, j.key)
	}
	end := d.endLocked(j)
	d.mu.Unlock()
	end(errVersionGone)
}

// endLocked takes a job out of the queue, and returns what ends it for a reason: at once where it has not begun.
func (d *digester) endLocked(j *digestJob) func(error) {
	if j.begun {
		return j.stop
	}
	j.begun = true // nobody else ends it
	d.queue = slices.DeleteFunc(d.queue, func(k *digestJob) bool { return k == j })
	return func(why error) {
		j.stop(why)
		j.finish(why)
	}
}

// close stops all work. Those who wait for digests are told.
func (d *digester) close() {
	d.mu.Lock()
	d.closed = true
	var ends []func(error)
	for _, j := range d.jobs {
		ends = append(ends, d.endLocked(j))
	}
	d.mu.Unlock()
	for _, end := range ends {
		end(status.ErrServerClosing)
	}
}

// run works the queue off.
func (d *digester) run() {
	for {
		d.mu.Lock()
		if len(d.queue) == 0 {
			d.running = false
			d.mu.Unlock()
			return
		}
		j := d.queue[0]
		d.queue = slices.Delete(d.queue, 0, 1)
		j.begun = true
		log := d.of.Log.With("name", j.key.name, "version", j.key.version)
		d.mu.Unlock()
		start := time.Now()
		j.compute(d.of.Digest)
		switch {
		case j.err == nil:
			log.Info("digests computed", "digest", j.whole.String(), "took", time.Since(start))
		case j.ctx.Err() == nil:
			log.Warn("digests cannot be computed", "error", j.err)
		}
		j.stop(nil)
	}
}

// compute reads all tensors. One that ends early does so with its context's cause.
func (j *digestJob) compute(digest func(context.Context, *module.StateDict, int) (map[string]module.Digest, error)) {
	each, err := digest(j.ctx, j.sd, 1)
	if err == nil {
		j.whole, j.tensors, err = packDigests(j.sd, each)
	}
	j.finish(err)
}

// packDigests makes the digest of the whole and a column in the order of the state dict.
func packDigests(sd *module.StateDict, each map[string]module.Digest) (whole module.Digest, column []byte, err error) {
	if err := sd.SetDigests(each); err != nil { // the state dict is the job's own
		return whole, nil, err
	}
	whole, _ = sd.ClaimedDigest()
	for name := range sd.All() {
		digest := each[name]
		column = append(column, digest[:]...)
	}
	return whole, column, nil
}

// finish ends the job.
func (j *digestJob) finish(err error) {
	j.err = err
	if closing := j.sd.Close(); j.err == nil {
		j.err = closing
	}
	close(j.done)
}

// wait returns when the digests are computed, or cannot be, or ctx ends.
func (j *digestJob) wait(ctx context.Context) error {
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// state is how the job stands, with the digest of the whole where it is known.
func (j *digestJob) state() (message.DigestState, []byte) {
	select {
	case <-j.done:
	default:
		return message.DigestPending, nil
	}
	if j.err != nil {
		return message.DigestFailed, nil
	}
	return message.DigestComputed, j.whole[:]
}

// job is that of a state dict that the catalog has; nil where its digests are not computed.
func (d *digester) job(sd *module.StateDict) *digestJob {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.jobs[sd]
}

// describe fills in how the digests of versions stand.
func (d *digester) describe(name string, versions []message.VersionInfo) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range versions {
		if j := d.byVersion[versionKey{name, versions[i].Version}]; j != nil {
			versions[i].DigestState, versions[i].Digest = j.state()
		}
	}
}

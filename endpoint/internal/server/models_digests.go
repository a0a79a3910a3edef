package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// digester computes the requested digests of versions, oldest first, one version at a time in one goroutine. It reads
// every byte itself instead of trusting the publisher. The record of a version has its job.
type digester struct {
	of *Models

	mu      sync.Mutex
	queue   []*digestJob
	current *digestJob // the job that is computed; nil for none
	running bool       // the goroutine is running
	closed  bool
	work    sync.WaitGroup // the goroutine; added to under mu while not closed
}

// digestJob computes the digests of one version.
type digestJob struct {
	of   *record
	sd   *module.StateDict // an alias; finish closes it
	ctx  context.Context   // ends when the version is dropped
	stop context.CancelCauseFunc
	done chan struct{}

	// Guarded by digester.mu.
	version uint64 // zero before publication
	begun   bool   // it is computed or ended

	// Set before done is closed.
	whole   module.Digest
	tensors []byte
	err     error
}

// errVersionGone is the error of digests whose version was dropped by the catalog before they were computed.
var errVersionGone = fmt.Errorf("%w: the version was freed before its digests were computed", status.ErrNotFound)

// add returns the job of a record that is not published yet. Digests that an earlier owner has computed finish it. add
// returns nil if the server is closing.
func (d *digester) add(r *record) *digestJob {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	j := &digestJob{of: r, sd: r.StateDict.Alias(), done: make(chan struct{})}
	j.ctx, j.stop = context.WithCancelCause(context.Background())
	if r.tensors != nil {
		j.adopt(r.tensors)
	}
	return j
}

// adopt finishes the job with known digests of the tensors. If they do not fit the state dict, they are computed.
func (j *digestJob) adopt(tensors []byte) {
	each := map[string]module.Digest{}
	for name := range j.sd.All() {
		if len(tensors) < len(module.Digest{}) {
			return
		}
		each[name] = module.Digest(tensors[:len(module.Digest{})])
		tensors = tensors[len(module.Digest{}):]
	}
	whole, column, err := packDigests(j.sd, each)
	if err != nil || len(tensors) > 0 {
		return
	}
	j.whole, j.tensors, j.begun = whole, column, true
	j.finish(nil)
}

// start queues the job of a published version, unless the catalog has freed the version already. j may be nil.
func (d *digester) start(j *digestJob, version uint64) {
	if j == nil {
		return
	}
	d.mu.Lock()
	if d.closed {
		end := d.endLocked(j)
		d.mu.Unlock()
		end(status.ErrServerClosing)
		return
	}
	defer d.mu.Unlock()
	if j.begun { // adopted or freed
		return
	}
	j.version = version
	d.queue = append(d.queue, j)
	if !d.running {
		d.running = true
		d.work.Go(d.run)
	}
}

// drop ends the job of a record that is closed. j may be nil.
func (d *digester) drop(j *digestJob) {
	if j == nil {
		return
	}
	d.mu.Lock()
	end := d.endLocked(j)
	d.mu.Unlock()
	end(errVersionGone)
}

// endLocked removes a job from the queue. The returned function ends the job with an error; a job that has not begun
// ends at once.
func (d *digester) endLocked(j *digestJob) func(error) {
	if j.begun {
		return j.stop
	}
	j.begun = true // run does not start it
	d.queue = slices.DeleteFunc(d.queue, func(k *digestJob) bool { return k == j })
	return func(why error) {
		j.stop(why)
		j.finish(why)
	}
}

// close cancels all jobs. Their waiters get an error.
func (d *digester) close() {
	d.mu.Lock()
	d.closed = true
	var ends []func(error)
	for _, j := range append(slices.Clone(d.queue), d.current) {
		if j != nil {
			ends = append(ends, d.endLocked(j))
		}
	}
	d.mu.Unlock()
	for _, end := range ends {
		end(status.ErrServerClosing)
	}
}

// run computes queued jobs until the queue is empty.
func (d *digester) run() {
	for {
		d.mu.Lock()
		if len(d.queue) == 0 {
			d.running, d.current = false, nil
			d.mu.Unlock()
			return
		}
		j := d.queue[0]
		d.queue = slices.Delete(d.queue, 0, 1)
		j.begun, d.current = true, j
		log := d.of.Log.With("name", j.of.Name, "version", j.version)
		d.mu.Unlock()
		start := time.Now()
		j.compute(d.of.Digest, func() { d.of.keeping.digested(j.of.stored, j.tensors) })
		switch {
		case j.err == nil:
			log.Info("digests computed", "digest", j.whole.String(), "took", time.Since(start))
		case j.ctx.Err() == nil:
			log.Warn("digests cannot be computed", "error", j.err)
		}
		j.stop(nil)
	}
}

// compute reads all tensors. It calls store before it wakes the waiters, so the next owner has each digest that this owner
// has answered. If cancelled, it fails with the cause of the job's context.
func (j *digestJob) compute(digest func(context.Context, *module.StateDict, int) (map[string]module.Digest, error), store func()) {
	each, err := digest(j.ctx, j.sd, 1)
	if err == nil {
		j.whole, j.tensors, err = packDigests(j.sd, each)
	}
	if err == nil {
		store()
	}
	j.finish(err)
}

// packDigests returns the digest of the state dict and the tensor digests in its order.
func packDigests(sd *module.StateDict, each map[string]module.Digest) (whole module.Digest, column []byte, err error) {
	if err := sd.SetDigests(each); err != nil { // the job owns the state dict
		return whole, nil, err
	}
	whole, _ = sd.ClaimedDigest()
	for name := range sd.All() {
		digest := each[name]
		column = append(column, digest[:]...)
	}
	return whole, column, nil
}

// finish sets the result of the job and wakes its waiters.
func (j *digestJob) finish(err error) {
	j.err = err
	if closing := j.sd.Close(); j.err == nil {
		j.err = closing
	}
	close(j.done)
}

// wait returns when the digests are computed, the job has failed, or ctx ends.
func (j *digestJob) wait(ctx context.Context) error {
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
		return ended.Cause(ctx)
	}
}

// computed returns the digests of the tensors; nil if they are not computed. j may be nil.
func (j *digestJob) computed() []byte {
	if j == nil {
		return nil
	}
	select {
	case <-j.done:
	default:
		return nil
	}
	if j.err != nil {
		return nil
	}
	return j.tensors
}

// state returns the state of the job and, if it is computed, the digest of the whole version. j may be nil.
func (j *digestJob) state() (state message.DigestState, whole []byte) {
	if j == nil {
		return state, nil
	}
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

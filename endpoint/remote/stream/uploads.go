package stream

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
	"github.com/sharedtensor/sharedtensor/module"
)

// transfer identifies a Put. Ids are chosen by clients, so they are unique only per identity.
type transfer struct{ identity, id string }

// uploads holds the sets that are being received and the outcomes of those that were passed to the sink.
//
//	receiving ──> delivering ──> outcome ──> forgotten (after OutcomesFor, or over the client's limit)
//	  └─> waiting (its call broke off) ──> receiving, or abandoned (after ResumeFor, or over the client's limit)
type uploads struct {
	limits Limits
	pool   *admission.Pool
	device driver.Device
	eager  bool // the device allocates memory immediately

	mu       sync.Mutex
	open     map[transfer]*waiting
	outcomes map[transfer]*outcome
	order    map[string][]transfer // by identity: transfers with an outcome, oldest first
	kept     map[string]int        // by identity: number of tensors in outcomes
	closed   bool
}

// waiting is an upload that was not passed to the sink yet.
type waiting struct {
	*upload
	transfer   transfer
	calls      int           // calls that use the upload
	since      time.Time     // when the last call left it
	timer      *time.Timer   // ends it
	delivering chan struct{} // not nil while the sink has the set; closed when the outcome is known
}

// outcome is the result of a set and the checksums that identify a repetition.
type outcome struct {
	done   *streampb.Done
	digest [sha256.Size]byte // of the description
	crc32c []uint32          // of each tensor
	until  time.Time
}

// Limits of the outcomes of one client.
const (
	keptOutcomes = 1024
	keptTensors  = 1 << 18
)

func newUploads(limits Limits, pool *admission.Pool, dev driver.Device, eager bool) *uploads {
	return &uploads{
		limits: limits, pool: pool, device: dev, eager: eager, open: make(map[transfer]*waiting), outcomes: make(map[transfer]*outcome),
		order: make(map[string][]transfer), kept: make(map[string]int),
	}
}

// begun is the result of begin: an upload that the call may write, an outcome, or busy.
type begun struct {
	upload  *waiting
	writer  int
	resume  []*streampb.Position
	outcome *outcome      // of a finished transfer
	busy    chan struct{} // closed when the sink has finished with the transfer
}

// begin returns the upload that d continues, or creates one, for a call of id.
func (us *uploads) begin(id admission.Identity, d *description) (begun, error) {
	us.mu.Lock()
	defer us.mu.Unlock()
	if us.closed {
		return begun{}, fmt.Errorf("%w: the server is closed", ErrNotServed)
	}
	name := transfer{id.Key(), d.id}
	us.expireLocked(name.identity)
	if d.id != "" {
		if b, found, err := us.findLocked(name, d); err != nil || found {
			return b, err
		}
	}
	us.makeRoomLocked(name.identity)
	u, err := newUpload(d, us.device, us.pool.Open(id), us.eager)
	if err != nil {
		return begun{}, err
	}
	w := &waiting{upload: u, transfer: name, calls: 1}
	if d.id != "" {
		us.open[name] = w
	}
	b := begun{upload: w}
	b.writer, b.resume, err = w.begin()
	return b, err
}

// findLocked finds a transfer with the id of d. A different set with the same id is refused.
func (us *uploads) findLocked(name transfer, d *description) (b begun, found bool, err error) {
	other := fmt.Errorf("%w: the transfer id %q was used for another set: use a new id", ErrInvalid, d.id)
	if o := us.outcomes[name]; o != nil {
		if o.digest != d.digest {
			return b, false, other
		}
		return begun{outcome: o}, true, nil
	}
	w := us.open[name]
	switch {
	case w == nil:
		return b, false, nil
	case !w.description.equal(d):
		return b, false, other
	case w.delivering != nil:
		return begun{busy: w.delivering}, true, nil
	}
	b.upload = w
	if b.writer, b.resume, err = w.begin(); err != nil {
		return b, false, err
	}
	w.calls++
	w.stopTimer()
	return b, true, nil
}

// makeRoomLocked abandons the client's longest-waiting upload if the client has too many.
func (us *uploads) makeRoomLocked(identity string) {
	var oldest *waiting
	n := 0
	for name, w := range us.open {
		if name.identity != identity || w.calls > 0 {
			continue
		}
		if n++; oldest == nil || w.since.Before(oldest.since) {
			oldest = w
		}
	}
	if n >= us.limits.Uploads {
		us.forgetLocked(oldest)
	}
}

// leave ends a call before its upload was passed to the sink. The upload can be resumed for a while.
func (us *uploads) leave(w *waiting) {
	us.mu.Lock()
	defer us.mu.Unlock()
	if w.calls--; w.calls > 0 {
		return
	}
	if us.open[w.transfer] != w || us.closed {
		w.abandon() // no call can find it
		return
	}
	w.since = time.Now()
	w.timer = time.AfterFunc(us.limits.ResumeFor, func() {
		us.mu.Lock()
		defer us.mu.Unlock()
		if w.calls == 0 && us.open[w.transfer] == w {
			us.forgetLocked(w)
		}
	})
}

func (us *uploads) forgetLocked(w *waiting) {
	delete(us.open, w.transfer)
	w.stopTimer()
	w.abandon()
}

// deliver returns the set of a complete upload for the sink. The caller owns it. Only the current writer may call it.
func (us *uploads) deliver(w *waiting, writer int) (*module.StateDict, error) {
	us.mu.Lock()
	defer us.mu.Unlock()
	sd, err := w.finish(writer)
	if err == nil {
		w.delivering = make(chan struct{})
	}
	return sd, err
}

// finished records the outcome of a delivered upload. If done is nil, the delivery failed permanently.
func (us *uploads) finished(w *waiting, done *streampb.Done) {
	us.mu.Lock()
	defer us.mu.Unlock()
	w.calls--
	if us.open[w.transfer] == w {
		delete(us.open, w.transfer)
	}
	if done != nil && w.transfer.id != "" {
		us.keepLocked(w, done)
	}
	if w.delivering != nil {
		close(w.delivering)
		w.delivering = nil
	}
}

func (us *uploads) keepLocked(w *waiting, done *streampb.Done) {
	o := &outcome{done: done, digest: w.description.digest, crc32c: w.checksums(), until: time.Now().Add(us.limits.OutcomesFor)}
	identity := w.transfer.identity
	us.outcomes[w.transfer] = o
	us.order[identity] = append(us.order[identity], w.transfer)
	us.kept[identity] += len(o.crc32c)
	us.expireLocked(identity)
}

// expireLocked removes the client's outcomes that are too old or too many.
func (us *uploads) expireLocked(identity string) {
	order, now := us.order[identity], time.Now()
	for len(order) > 0 {
		o := us.outcomes[order[0]]
		if len(order) <= keptOutcomes && us.kept[identity] <= keptTensors && now.Before(o.until) {
			break
		}
		us.kept[identity] -= len(o.crc32c)
		delete(us.outcomes, order[0])
		order = order[1:]
	}
	if us.order[identity] = order; len(order) == 0 {
		delete(us.order, identity)
		delete(us.kept, identity)
	}
}

func (us *uploads) close() {
	us.mu.Lock()
	defer us.mu.Unlock()
	us.closed = true
	for _, w := range us.open {
		us.forgetLocked(w)
	}
}

func (w *waiting) stopTimer() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

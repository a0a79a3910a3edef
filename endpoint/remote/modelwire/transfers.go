package modelwire

import (
	"fmt"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/module"
)

// TransfersOptions configures Transfers.
type TransfersOptions struct {
	// Device is the device for received tensors, and Pool the budget of their bytes. Borrowed.
	Device driver.Device
	Pool   *admission.Pool
	// Eager means that Device allocates all memory immediately.
	Eager bool
	// Interrupted limits the interrupted transfers of one client. The oldest is abandoned first.
	Interrupted int
	// ResumeFor is how long an interrupted transfer can be resumed, and OutcomesFor how long an outcome is kept.
	ResumeFor, OutcomesFor time.Duration
}

// Limits of the outcomes of one client.
const (
	keptOutcomes = 1024
	keptTensors  = 1 << 18
)

// Transfers holds the uploads of a server's clients: those that are received, those that can be resumed, and the
// outcomes O of those that ended. Clients choose the ids of their transfers.
//
//	receiving ──> delivering ──> outcome ──> forgotten (after OutcomesFor, or over the client's limit)
//	  └─> interrupted ──> receiving, or abandoned (after ResumeFor, or over the client's limit)
type Transfers[O any] struct {
	options  TransfersOptions
	open     *admission.Kept[*Transfer[O]]
	outcomes *admission.Kept[*outcome[O]]
	begin    sync.Mutex // held while a transfer is looked up and created, or moved to the outcomes
}

// Transfer is an upload that has no outcome yet.
type Transfer[O any] struct {
	*Upload
	entry      *admission.Entry[*Transfer[O]]
	identity   rights.Identity
	id         string
	delivering chan struct{} // not nil while the set is delivered; closed when the outcome is known
}

// outcome is the result of a transfer and the checksums that identify a repetition.
type outcome[O any] struct {
	result   O
	identity Sum // of the manifest
	sums     []uint32
}

// NewTransfers returns an empty store. The caller closes it.
func NewTransfers[O any](o TransfersOptions) *Transfers[O] {
	return &Transfers[O]{
		options:  o,
		open:     admission.NewEvicting(admission.Evict{Values: o.Interrupted}, nil, func(t *Transfer[O]) error { t.Abandon(); return nil }),
		outcomes: admission.NewEvicting[*outcome[O]](admission.Evict{Values: keptOutcomes, Weight: keptTensors}, nil, nil),
	}
}

// Begun is the result of Begin. One of Transfer, Repeat and Busy is not nil.
type Begun[O any] struct {
	// Transfer is an upload that the call may write as Writer, from the positions Resume.
	Transfer *Transfer[O]
	Writer   int
	Resume   []Position
	// Repeat is a transfer that has ended.
	Repeat *Repetition[O]
	// Busy is closed when another call has delivered the transfer.
	Busy <-chan struct{}
}

// Begin returns the transfer that the call of a client continues or repeats, or begins one. An empty id is always a new
// transfer. The caller passes the transfer to Leave or to Deliver.
func (ts *Transfers[O]) Begin(client rights.Identity, id string, m *Manifest) (b Begun[O], err error) {
	ts.begin.Lock()
	defer ts.begin.Unlock()
	key := client.Key() + "\x00" + id
	if id == "" {
		key = fmt.Sprintf("%p", m) // not kept under this key for other calls
	} else if b, found, err := ts.find(key, id, m); found || err != nil {
		return b, err
	}
	u, err := NewUpload(m, ts.options.Device, ts.options.Pool.Open(client), ts.options.Eager)
	if err != nil {
		return b, err
	}
	t := &Transfer[O]{Upload: u, identity: client, id: id}
	if t.entry, err = ts.open.Use(client, key, t, 1, ts.options.ResumeFor); err != nil {
		u.Abandon()
		return b, err
	}
	b.Transfer = t
	b.Writer, b.Resume, err = u.Begin()
	return b, err
}

// find finds a transfer. A different version under the same id is refused.
func (ts *Transfers[O]) find(key, id string, m *Manifest) (b Begun[O], found bool, err error) {
	other := fmt.Errorf("%w: the transfer id %q %w", ErrInvalid, id, errOtherBytes)
	if o, found := ts.outcomes.Peek(key); found {
		if o.identity != m.Identity() {
			return b, false, other
		}
		return Begun[O]{Repeat: newRepetition(m, id, o)}, true, nil
	}
	e := ts.open.Open(key)
	if e == nil {
		return b, false, nil
	}
	t := e.Value
	switch {
	case t.manifest.Identity() != m.Identity():
		err = other
	case t.delivering != nil:
		b.Busy = t.delivering
	default:
		b.Transfer = t
		b.Writer, b.Resume, err = t.Begin()
	}
	if b.Transfer == nil || err != nil {
		ts.open.Release(e)
		b.Transfer = nil
	}
	return b, err == nil, err
}

// Leave ends a call before its transfer was delivered. The transfer can be resumed for a while.
func (ts *Transfers[O]) Leave(t *Transfer[O]) {
	if t.id == "" {
		ts.open.Drop(t.entry)
	}
	ts.open.Release(t.entry)
}

// Deliver passes the tensors of a complete transfer to deliver, which takes them, and keeps the outcome that it returns.
// Only the current writer may call it; otherwise the error is ErrTakenOver.
func (ts *Transfers[O]) Deliver(t *Transfer[O], writer int, deliver func(*module.StateDict) (O, error)) (result O, err error) {
	ts.begin.Lock()
	held, err := t.Finish(writer)
	if err == nil {
		t.delivering = make(chan struct{})
	}
	ts.begin.Unlock()
	if err == nil {
		result, err = deliver(held.Value)
		held.Release()
	}
	ts.begin.Lock()
	defer ts.begin.Unlock()
	if t.delivering == nil {
		ts.Leave(t) // another call continues it
		return result, err
	}
	ts.open.Drop(t.entry)
	ts.open.Release(t.entry)
	if err == nil && t.id != "" {
		o := &outcome[O]{result, t.manifest.Identity(), t.progress.sums()}
		if e, keepErr := ts.outcomes.Use(t.identity, t.entry.ID, o, int64(len(o.sums)), ts.options.OutcomesFor); keepErr == nil {
			ts.outcomes.Release(e)
		}
	}
	close(t.delivering)
	return result, err
}

// Close abandons all transfers. Later calls of Begin fail.
func (ts *Transfers[O]) Close() error {
	_ = ts.outcomes.Close() // frees nothing
	return ts.open.Close()
}

// Repetition is the repeated upload of a version that has an outcome. Nothing is stored. Data that the client sends
// nevertheless must have the checksums of the first transfer.
type Repetition[O any] struct {
	// Resume are the positions to report to the client: all tensors are complete.
	Resume []Position

	id       string
	outcome  *outcome[O]
	progress Progress
}

func newRepetition[O any](m *Manifest, id string, o *outcome[O]) *Repetition[O] {
	r := &Repetition[O]{id: id, outcome: o, progress: newProgress(m)}
	for i := range m.Tensors {
		r.progress.positions[i] = Position{i, m.Tensors[i].Bytes, o.sums[i]}
	}
	r.Resume = r.progress.begun()
	return r
}

// Write compares a piece with the first transfer.
func (r *Repetition[O]) Write(piece *Piece) error {
	at, e, err := r.progress.accept(piece)
	if err != nil {
		return err
	}
	crc := at.CRC32C
	for _, b := range piece.Data {
		crc = Checksum(crc, b)
	}
	if err := r.progress.finish(piece, at, crc); err != nil || at.Offset < e.Bytes {
		return err
	}
	return r.compare(piece.Tensor)
}

func (r *Repetition[O]) compare(i int) error {
	if r.progress.positions[i].CRC32C != r.outcome.sums[i] {
		return fmt.Errorf("%w: the transfer id %q was used for other bytes of tensor %q: use a new id", ErrInvalid, r.id, r.progress.manifest.Tensors[i].Name)
	}
	return nil
}

// Result returns the outcome of the first transfer if all bytes equal those of it.
func (r *Repetition[O]) Result() (result O, err error) {
	if err := r.progress.missing(); err != nil {
		return result, err
	}
	for i := range r.progress.positions {
		if err := r.compare(i); err != nil {
			return result, err
		}
	}
	return r.outcome.result, nil
}

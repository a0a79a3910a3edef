package offering

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Conn is the connection of a worker.
type Conn interface {
	// SendContext is that of [wire.Conn].
	SendContext(ctx context.Context, kind wire.Kind, id uint64, body []byte, files ...*os.File) error
}

// Worker is a client that offers endpoints.
type Worker struct {
	table *Table
	conn  Conn
	about message.EndpointWorker

	gone    chan struct{}  // closed when the connection has ended
	cancels sync.WaitGroup // goroutines that tell it of cancelled calls

	// Guarded by the table's lock.
	offers  map[uint64]*offer // by the request that made them
	calls   map[uint64]*call  // that it has not answered
	last    uint64            // number of a call
	running int               // places that are taken
	offered int               // endpoints
	bytes   int64             // of their descriptions
	ended   bool
	idle    chan struct{} // closed when it has no calls any more; nil where nobody waits for that
}

// offer is one offer of a worker. Its fields are guarded by the table's lock.
type offer struct {
	worker    *Worker
	request   uint64
	endpoints []*endpoint
	count     int   // of them, also when they have been taken back
	bytes     int64 // of their descriptions
	most      int   // calls at once
	running   int   // calls that it has not answered
	begun     bool  // the worker knows that it was taken: events may follow
}

// NewWorker is a client that may offer endpoints.
func (t *Table) NewWorker(conn Conn, about message.EndpointWorker) *Worker {
	return &Worker{table: t, conn: conn, about: about, gone: make(chan struct{}), offers: map[uint64]*offer{}, calls: map[uint64]*call{}}
}

// Offer takes the endpoints of a request, all or none. Calls of them wait until Begin. It returns how many calls come
// at once.
func (w *Worker) Offer(request uint64, in *message.Offer) (calls int, err error) {
	t := w.table
	if len(in.Endpoints) > t.Bounds.Endpoints { // before they are looked at
		return 0, t.countLocked(&Worker{}, len(in.Endpoints), 0)
	}
	list, bytes, err := describeAll(in.Endpoints)
	if err != nil {
		return 0, err
	}
	o := &offer{worker: w, request: request, count: len(list), bytes: bytes, most: t.Bounds.Calls}
	if in.Calls > 0 && in.Calls < uint64(o.most) {
		o.most = int(in.Calls)
	}
	t.mu.Lock()
	var withdrawn []string
	defer func() {
		t.mu.Unlock()
		t.tellWithdrawn(withdrawn)
	}()
	if w.ended {
		return 0, errEnded
	}
	if err := t.countLocked(w, len(list), bytes); err != nil {
		return 0, err
	}
	for _, d := range list {
		if err := t.joinLocked(o, d); err != nil {
			withdrawn = t.removeLocked(o)
			return 0, err
		}
	}
	w.offers[request] = o
	w.countLocked(o, 1)
	return o.most, nil
}

// countLocked adds an offer to what is counted, or with -1 takes it away.
func (w *Worker) countLocked(o *offer, sign int) {
	w.offered += sign * o.count
	w.table.offered += sign * o.count
	w.bytes += int64(sign) * o.bytes
	w.table.bytes += int64(sign) * o.bytes
}

// Begin lets calls of an offer go out, now that its request has been answered.
func (w *Worker) Begin(request uint64) {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	if o := w.offers[request]; o != nil {
		o.begun = true
		o.fillLocked()
	}
}

// Has reports whether a request made an offer that is not withdrawn.
func (w *Worker) Has(request uint64) bool {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	return w.offers[request] != nil
}

// Offered is how many endpoints the client offers, and the bytes of their descriptions.
func (w *Worker) Offered() (endpoints int, bytes int64) {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	return w.offered, w.bytes
}

// Running is how many calls the client has that it has not answered.
func (w *Worker) Running() int {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	return len(w.calls)
}

// Withdraw takes the endpoints of an offer back; false where the request made none. Calls that the worker has go on.
func (w *Worker) Withdraw(request uint64) bool {
	t := w.table
	t.mu.Lock()
	o := w.offers[request]
	if o == nil {
		t.mu.Unlock()
		return false
	}
	withdrawn := w.withdrawLocked(o)
	t.mu.Unlock()
	t.tellWithdrawn(withdrawn)
	return true
}

func (w *Worker) withdrawLocked(o *offer) []string {
	delete(w.offers, o.request)
	w.countLocked(o, -1)
	return w.table.removeLocked(o)
}

// End withdraws all offers of a worker whose connection has ended, and ends the calls that it has.
func (w *Worker) End() {
	t := w.table
	t.mu.Lock()
	if w.ended {
		t.mu.Unlock()
		return
	}
	w.ended = true
	var withdrawn []string
	for _, o := range w.offers {
		withdrawn = append(withdrawn, w.withdrawLocked(o)...)
	}
	clear(w.calls)
	w.idleLocked()
	t.mu.Unlock()
	close(w.gone)
	t.tellWithdrawn(withdrawn)
	w.cancels.Wait() // the connection is closed
}

// Finish returns when the worker has answered all its calls, or ctx ends.
func (w *Worker) Finish(ctx context.Context) {
	w.table.mu.Lock()
	if w.idle == nil {
		w.idle = make(chan struct{})
	}
	idle := w.idle
	w.idleLocked()
	w.table.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// idleLocked wakes the goroutines that wait until no call is left.
func (w *Worker) idleLocked() {
	if w.idle == nil || len(w.calls) > 0 {
		return
	}
	select {
	case <-w.idle:
	default:
		close(w.idle)
	}
}

// errEnded is an offer of a client whose connection has ended.
var errEnded = fmt.Errorf("%w: the connection has ended", status.ErrUnavailable)

// errGone is what callers get whose worker has gone.
func errGone(w *Worker) error {
	return fmt.Errorf("%w: %s went away before it answered; nobody knows whether the function ran, and it is not called again", status.ErrWorkerGone, w)
}

// String names the worker for people.
func (w *Worker) String() string {
	text := fmt.Sprintf("the worker in process %d", w.about.PID)
	if w.about.Label != "" {
		text += " (" + w.about.Label + ")"
	}
	return text
}

// noTime is a context that has ended: for what must not wait.
var noTime = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// closeAll closes storages.
func closeAll(list []*tensor.Storage) {
	for _, s := range list {
		s.Close()
	}
}

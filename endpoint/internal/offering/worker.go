package offering

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Conn is the connection of a worker.
type Conn interface {
	// SendContext is the method of [wire.Conn].
	SendContext(ctx context.Context, kind wire.Kind, id uint64, body []byte, files ...*os.File) error
}

// Worker is a client that offers endpoints.
type Worker struct {
	// Inline permits memory within the frame. It is set before the first offer.
	Inline bool

	table *Table
	conn  Conn
	about message.EndpointWorker

	gone    chan struct{}  // closed when the connection has ended
	cancels sync.WaitGroup // goroutines that send cancels; Go is called under the table's lock before ended is set

	// Guarded by the table's lock.
	offers   map[uint64]*offer // by the id of the request
	calls    map[uint64]*call  // calls whose functions have not ended
	last     uint64            // number of the last call
	running  int               // slots in use, of all offers
	overdue  int               // number of overdue calls
	reported bool              // the first overdue call was logged
	offered  int               // number of endpoints
	bytes    int64             // size of their descriptions
	ended    bool
	idle     chan struct{} // closed when calls is empty; nil unless Finish is waiting
}

// offer is one offer of a worker. Its fields are guarded by the table's lock.
type offer struct {
	worker    *Worker
	request   uint64
	endpoints []*endpoint
	count     int   // number of endpoints, including removed ones
	bytes     int64 // size of their descriptions
	slots     int   // number of slots
	running   int   // slots in use
	overdue   int   // number of overdue calls
	begun     bool  // the offer's request was answered, so calls may be sent

	pause    time.Duration // next pause after a declined call; 0 if the last function that ended was not declined
	paused   bool          // no calls are sent until timer fires
	declined time.Time     // time of the first declined call since a function ended; zero if there is none
	timer    *time.Timer   // ends the pause; nil before the first pause
}

// NewWorker returns a worker for a client. It offers no endpoints yet.
func (t *Table) NewWorker(conn Conn, about message.EndpointWorker) *Worker {
	return &Worker{table: t, conn: conn, about: about, gone: make(chan struct{}), offers: map[uint64]*offer{}, calls: map[uint64]*call{}}
}

// Offer adds the endpoints of a request, all or none. Their calls wait until Begin. It returns the number of slots.
func (w *Worker) Offer(request uint64, in *message.Offer) (calls int, err error) {
	t := w.table
	if n := len(in.Endpoints); n > t.Limits.Offers { // before the descriptions are decoded
		return 0, status.Exceeded(status.LimitOffers, "the offer has %d endpoints, over the limit of %d for a client", n, t.Limits.Offers)
	}
	list, bytes, err := describeAll(in.Endpoints)
	if err != nil {
		return 0, err
	}
	o := &offer{worker: w, request: request, count: len(list), bytes: bytes, slots: t.Limits.WorkerCalls}
	if in.Calls > 0 && in.Calls < uint64(o.slots) {
		o.slots = int(in.Calls)
	}
	t.mu.Lock()
	var withdrawn []string
	defer func() {
		t.mu.Unlock()
		t.reportWithdrawn(withdrawn)
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
	return o.slots, nil
}

// countLocked adds an offer to the counts of endpoints and bytes, or subtracts it if sign is -1.
func (w *Worker) countLocked(o *offer, sign int) {
	w.offered += sign * o.count
	w.table.offered += sign * o.count
	w.bytes += int64(sign) * o.bytes
	w.table.bytes += int64(sign) * o.bytes
}

// Begin lets an offer receive calls. It is called when the offer's request has been answered.
func (w *Worker) Begin(request uint64) {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	if o := w.offers[request]; o != nil {
		o.begun = true
		o.fillLocked()
	}
}

// Has reports whether a request made an offer that has not ended.
func (w *Worker) Has(request uint64) bool {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	return w.offers[request] != nil
}

// Names returns the names of the endpoints that the client offers.
func (w *Worker) Names() (names []string) {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	for _, o := range w.offers {
		for _, e := range o.endpoints {
			names = append(names, e.definition.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Offered returns the number of endpoints that the client offers, and the bytes of their descriptions.
func (w *Worker) Offered() (endpoints int, bytes int64) {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	return w.offered, w.bytes
}

// Running returns the number of calls whose functions have not ended.
func (w *Worker) Running() int {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	return len(w.calls)
}

// Withdraw ends an offer. It returns false if the request made none. Calls that were sent continue.
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
	t.reportWithdrawn(withdrawn)
	return true
}

func (w *Worker) withdrawLocked(o *offer) []string {
	delete(w.offers, o.request)
	o.stopLocked()
	w.countLocked(o, -1)
	return w.table.removeLocked(o)
}

// End ends all offers and calls of a worker whose connection has ended.
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
	for _, c := range w.calls {
		c.stopLocked()
	}
	clear(w.calls)
	w.idleLocked()
	t.mu.Unlock()
	close(w.gone)
	t.reportWithdrawn(withdrawn)
	w.cancels.Wait() // ends soon, because the connection is closed
}

// Finish returns when the functions of all calls have ended, or ctx ends.
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

// idleLocked wakes the goroutines that wait in Finish if no calls remain.
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

// errEnded is the error of an offer after the client's connection has ended.
var errEnded = fmt.Errorf("%w: the connection has ended", status.ErrUnavailable)

// errGone is the error of calls whose worker's connection ended before the answer.
func errGone(w *Worker) error {
	return fmt.Errorf("%w: %s disconnected before it answered; the function may have run, and the call is not repeated", status.ErrWorkerGone, w)
}

// currentLocked reports whether an offer has not ended.
func (o *offer) currentLocked() bool { return o.worker.offers[o.request] == o }

// String describes the worker in errors.
func (w *Worker) String() string {
	text := fmt.Sprintf("the worker in process %d", w.about.PID)
	if w.about.Label != "" {
		text += " (" + w.about.Label + ")"
	}
	return text
}

// noTime is an expired context, for sends that must not wait.
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

package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/module"
)

// offerStall limits how long a peer's request waits for bytes that this mirror is fetching, and how long a peer may
// read nothing.
const offerStall = 10 * time.Second

// offer is a model that peers can fetch, also while this mirror fetches it. Its memory must remain valid until close
// returns.
type offer struct {
	peers   *Peers
	model   module.Digest
	total   int64
	done    *atomic.Int64
	tensors map[module.Digest]*offeredTensor
	deltas  *keptDeltas // nil if it was not made from the previous version

	ctx     context.Context
	stop    context.CancelFunc
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// offeredTensor is one offered tensor.
type offeredTensor struct {
	data []byte
	here *arrivals
}

// offeredAs adds a tensor with the given memory to all and returns it. It returns nil if a tensor with the same bytes
// is there already.
func offeredAs(all map[module.Digest]*offeredTensor, digest module.Digest, data []byte) *offeredTensor {
	if t := all[digest]; t != nil && &t.data[0] == &data[0] {
		return t
	}
	return nil
}

// markReceived records bytes that have arrived. It does nothing on nil.
func (t *offeredTensor) markReceived(at, n int64) {
	if t != nil {
		t.here.add(at, n)
	}
}

// arrivals records which bytes have arrived. They arrive in several ranges at once, each from its beginning.
type arrivals struct {
	size, step int64

	mu      sync.Mutex
	upTo    []int64 // arrived bytes of each range
	changed chan struct{}
}

func newArrivals(size, step int64) *arrivals {
	return &arrivals{size: size, step: step, upTo: make([]int64, (size+step-1)/step), changed: make(chan struct{})}
}

// add records n bytes that arrived at an offset.
func (a *arrivals) add(at, n int64) {
	if n <= 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for n > 0 {
		i := at / a.step
		here := min(n, (i+1)*a.step-at)
		a.upTo[i] = max(a.upTo[i], at+here-i*a.step)
		at, n = at+here, n-here
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

// available returns the number of contiguous bytes available at an offset, and a channel that is closed when more
// arrive.
func (a *arrivals) available(at int64) (n int64, more <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	begin := at
	for at < a.size {
		i := at / a.step
		end := i*a.step + a.upTo[i]
		if at = max(at, end); end < min((i+1)*a.step, a.size) {
			break
		}
	}
	return at - begin, a.changed
}

// offer announces a model and serves it to peers. The caller closes the offer before it frees the memory.
func (p *Peers) offer(model module.Digest, total int64, done *atomic.Int64, tensors map[module.Digest]*offeredTensor, deltas *keptDeltas) *offer {
	o := &offer{peers: p, model: model, total: total, done: done, tensors: tensors, deltas: deltas}
	o.ctx, o.stop = context.WithCancel(context.Background())
	p.mu.Lock()
	p.offers[model] = o
	p.mu.Unlock()
	if p.options.URL != "" {
		o.running.Go(o.announce)
	}
	return o
}

// enter keeps the memory valid until leave is called. ok is false if the offer is closed.
func (p *Peers) enter(model module.Digest) (o *offer, leave func(), ok bool) {
	p.mu.Lock()
	o = p.offers[model]
	p.mu.Unlock()
	if o == nil {
		return nil, nil, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, nil, false
	}
	o.running.Add(1)
	return o, o.running.Done, true
}

// close ends the offer and the requests of peers. It returns when no request reads the memory. Closing nil does
// nothing.
func (o *offer) close() {
	if o == nil {
		return
	}
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.stop()
	o.peers.mu.Lock()
	if o.peers.offers[o.model] == o {
		delete(o.peers.offers, o.model)
	}
	o.peers.mu.Unlock()
	o.running.Wait()
}

// announce publishes the model's progress until the offer is closed: when the first bytes arrive, after each tenth, and
// often enough that the entry does not expire.
func (o *offer) announce() {
	said, at := int64(-1), time.Time{}
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	for o.ctx.Err() == nil {
		done := o.done.Load()
		news := said <= 0 && done != said || done == o.total && done != said || done-said > o.total/10
		if news || time.Since(at) > peersLast/3 {
			if o.put(done) == nil {
				said, at = done, time.Now()
			}
		}
		select {
		case <-tick.C:
		case <-o.ctx.Done():
		}
	}
	o.peers.mu.Lock()
	superseded := o.peers.offers[o.model] != nil && o.peers.offers[o.model] != o
	o.peers.mu.Unlock()
	if superseded {
		return // the entry belongs to another offer
	}
	ctx, cancel := context.WithTimeout(context.Background(), peersTimeout)
	defer cancel()
	if kv, err := o.peers.bucket(ctx); err == nil {
		_ = kv.Purge(ctx, haveKey(o.model, o.peers.id)) // best effort: the entry expires
	}
}

// tell publishes the model's progress.
func (o *offer) tell() {
	if o.peers.options.URL != "" {
		_ = o.put(o.done.Load()) // best effort: announce repeats it
	}
}

func (o *offer) put(done int64) error {
	text, err := json.Marshal(peerEntry{URL: o.peers.options.URL, Done: min(done, o.total), Total: o.total, Host: hostID()})
	if err != nil {
		return err
	}
	kv, err := o.peers.bucket(o.ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(o.ctx, peersTimeout)
	defer cancel()
	_, err = kv.Put(ctx, haveKey(o.model, o.peers.id), text)
	return err
}

// ServeHTTP serves the bytes of a model's tensor. Model and tensor are identified by their digests. It waits for bytes
// that have not arrived yet. With ?base=, it serves the delta from the tensor with that digest, if this mirror was made
// with it.
func (p *Peers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	model, err := module.ParseDigest(r.PathValue("model"))
	digest, err2 := module.ParseDigest(r.PathValue("tensor"))
	if errors.Join(err, err2) != nil {
		http.Error(w, "the model and the tensor are named by their SHA-256", http.StatusBadRequest)
		return
	}
	o, leave, ok := p.enter(model)
	if !ok {
		http.Error(w, "that model is not here", http.StatusNotFound)
		return
	}
	defer leave()
	t := o.tensors[digest]
	if t == nil {
		http.Error(w, "the model has no such tensor", http.StatusNotFound)
		return
	}
	if text := r.URL.Query().Get("base"); text != "" {
		base, err := module.ParseDigest(text)
		if err != nil {
			http.Error(w, "the tensor of the version before is named by its SHA-256", http.StatusBadRequest)
			return
		}
		o.serveDelta(w, r, deltaPair{base, digest})
		return
	}
	size := int64(len(t.data))
	begin, end, partial, ok := parseRange(r.Header.Get("Range"), size)
	if !ok {
		w.Header().Set("Content-Range", "bytes */"+strconv.FormatInt(size, 10))
		http.Error(w, "one range of bytes", http.StatusRequestedRangeNotSatisfiable)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("ETag", etag(digest))
	h.Set("Content-Length", strconv.FormatInt(end-begin, 10))
	status := http.StatusOK
	if partial {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", begin, end-1, size))
		status = http.StatusPartialContent
	}
	w.WriteHeader(status)
	if !o.send(w, r, t, begin, end) {
		panic(http.ErrAbortHandler) // the announced length cannot be sent
	}
}

// send writes bytes as they arrive. It reports whether all were sent.
func (o *offer) send(w http.ResponseWriter, r *http.Request, t *offeredTensor, begin, end int64) bool {
	control := http.NewResponseController(w)
	defer context.AfterFunc(o.ctx, func() { _ = control.SetWriteDeadline(time.Now()) })()
	for begin < end {
		n, more := t.here.available(begin)
		if n == 0 {
			if control.Flush() != nil || !o.await(r, more) {
				return false
			}
			continue
		}
		n = min(n, end-begin, readBytes)
		_ = control.SetWriteDeadline(time.Now().Add(offerStall)) // best effort: the peer has a timeout too
		if o.ctx.Err() != nil {
			return false
		}
		if _, err := w.Write(t.data[begin : begin+n]); err != nil {
			return false
		}
		begin += n
	}
	return true
}

// await waits for more bytes. It reports whether some arrived.
func (o *offer) await(r *http.Request, more <-chan struct{}) bool {
	select {
	case <-more:
		return true
	case <-r.Context().Done():
	case <-o.ctx.Done():
	case <-time.After(offerStall):
	}
	return false
}

// parseRange parses a request for all of size bytes, or for one range with both ends.
func parseRange(field string, size int64) (begin, end int64, partial, ok bool) {
	if field == "" {
		return 0, size, false, true
	}
	first, last, found := strings.Cut(strings.TrimPrefix(field, "bytes="), "-")
	begin, err := strconv.ParseInt(first, 10, 64)
	end, err2 := strconv.ParseInt(last, 10, 64)
	if !found || err != nil || err2 != nil || begin < 0 || end < begin || end >= size {
		return 0, 0, false, false
	}
	return begin, end + 1, true, true
}

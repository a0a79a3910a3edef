package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/module"
)

// offerStall limits how long a peer's request waits for bytes that this mirror is fetching.
const offerStall = 10 * time.Second

// offer is a model that peers can fetch, also while this mirror fetches it. Its memory must remain valid until close
// returns.
type offer struct {
	peers   *Peers
	model   modelwire.Digest
	total   int64
	done    *atomic.Int64
	tensors map[modelwire.Sum]offeredTensor
	deltas  *keptDeltas // nil if it was not made from the previous version

	ctx     context.Context
	stop    context.CancelFunc
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// offeredTensor is one offered tensor. One of its fields is not nil.
type offeredTensor struct {
	arriving *modelwire.Destination
	data     []byte
}

// offered returns all tensors of an arriving version in the form that is offered to other mirrors.
func offered(a *modelwire.Arrival) map[modelwire.Sum]offeredTensor {
	tensors := map[modelwire.Sum]offeredTensor{}
	for _, d := range a.Tensors {
		if d != nil {
			tensors[d.Entry.Sum] = offeredTensor{arriving: d}
		}
	}
	return tensors
}

// offered returns all tensors of the base and the number of their bytes.
func (b *base) offered() (map[modelwire.Sum]offeredTensor, *atomic.Int64) {
	tensors, done := map[modelwire.Sum]offeredTensor{}, &atomic.Int64{}
	for digest, data := range b.byDigest {
		tensors[digest.Sum] = offeredTensor{data: data}
	}
	done.Store(b.manifest.Bytes)
	return tensors, done
}

// offer announces a model and serves it to peers. The caller closes the offer before it frees the memory.
func (p *Peers) offer(model modelwire.Digest, total int64, done *atomic.Int64, tensors map[modelwire.Sum]offeredTensor, deltas *keptDeltas) *offer {
	o := &offer{peers: p, model: model, total: total, done: done, tensors: tensors, deltas: deltas}
	o.ctx, o.stop = context.WithCancel(context.Background())
	p.mu.Lock()
	p.offers[model.Sum] = o
	p.mu.Unlock()
	if p.options.URL != "" {
		o.running.Go(o.announce)
	}
	return o
}

// enter keeps the memory valid until leave is called. ok is false if the offer is closed.
func (p *Peers) enter(model modelwire.Sum) (o *offer, leave func(), ok bool) {
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
	if o.peers.offers[o.model.Sum] == o {
		delete(o.peers.offers, o.model.Sum)
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
	superseded := o.peers.offers[o.model.Sum] != nil && o.peers.offers[o.model.Sum] != o
	o.peers.mu.Unlock()
	if superseded {
		return // the entry belongs to another offer
	}
	ctx, cancel := context.WithTimeout(context.Background(), peersTimeout)
	defer cancel()
	if kv, err := o.peers.bucket(ctx); err == nil {
		_ = kv.Purge(ctx, haveKey(o.model.Sum, o.peers.id)) // best effort: the entry expires
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
	_, err = kv.Put(ctx, haveKey(o.model.Sum, o.peers.id), text)
	return err
}

// ServeHTTP serves the bytes of a model's tensor. Model and tensor are identified by their digests in hexadecimal. It waits for bytes
// that have not arrived yet. With ?base=, it serves the delta from the tensor with that digest, if this mirror was made
// with it.
func (p *Peers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	model, err := module.ParseDigest(r.PathValue("model"))
	digest, err2 := module.ParseDigest(r.PathValue("tensor"))
	if errors.Join(err, err2) != nil {
		http.Error(w, "the model and the tensor are named by their digests", http.StatusBadRequest)
		return
	}
	o, leave, ok := p.enter(model)
	if !ok {
		http.Error(w, "that model is not here", http.StatusNotFound)
		return
	}
	defer leave()
	defer o.cutAtEnd(w)()
	t, found := o.tensors[digest]
	if !found {
		http.Error(w, "the model has no such tensor", http.StatusNotFound)
		return
	}
	if text := r.URL.Query().Get("base"); text != "" {
		base, err := module.ParseDigest(text)
		if err != nil {
			http.Error(w, "the tensor of the version before is named by its digest", http.StatusBadRequest)
			return
		}
		o.serveDelta(w, r, deltaPair{base, digest})
		return
	}
	content := &modelwire.Content{}
	if t.arriving == nil {
		content.AddBytes(t.data)
	} else {
		content.AddArriving(&modelwire.Arriving{Destination: t.arriving, Wait: func(more <-chan struct{}) error { return o.await(w, r, more) }})
	}
	content.Serve(w, r, modelwire.Digest{Hash: o.model.Hash, Sum: digest})
}

// cutAtEnd ends the answer to a peer when the offer is closed, because a peer that does not read must not delay that. The handler
// calls done before it returns: afterwards the answer cannot be used.
func (o *offer) cutAtEnd(w http.ResponseWriter) (done func()) {
	control, cut := http.NewResponseController(w), make(chan struct{})
	stop := context.AfterFunc(o.ctx, func() {
		defer close(cut)
		_ = control.SetWriteDeadline(time.Unix(1, 0)) // best effort: the peer has left
	})
	return func() {
		if !stop() {
			<-cut
		}
	}
}

// errEnded ends a response whose offer is closed, or whose peer or source is too slow.
var errEnded = errors.New("the bytes are not available any more")

// await waits for more bytes.
func (o *offer) await(w http.ResponseWriter, r *http.Request, more <-chan struct{}) error {
	if err := http.NewResponseController(w).Flush(); err != nil {
		return err
	}
	select {
	case <-more:
		return nil
	case <-r.Context().Done():
	case <-o.ctx.Done():
	case <-time.After(offerStall):
	}
	return errEnded
}

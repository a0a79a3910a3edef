package mirror

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/delta"
	"github.com/sharedtensor/sharedtensor/module"
)

// keptPart is what part of a model deltas may take that are kept for other mirrors.
const keptPart = 4

// keptDeltas are the deltas by which a version was made of the one before, for mirrors that make it of the same one.
// What it has was applied here and led to the digest of the manifest. Its methods do nothing on nil.
type keptDeltas struct {
	planned chan struct{} // closed when all that will be there are in byPair

	mu     sync.Mutex
	left   int64 // bytes that may be kept yet
	byPair map[deltaPair]*keptDelta
}

// deltaPair is what a delta leads from and to.
type deltaPair struct{ base, tensor module.Digest }

// keptDelta is one of them.
type keptDelta struct {
	settled chan struct{} // closed when data is what it will be
	data    []byte        // nil for a delta that was not kept
}

func newKeptDeltas(model int64) *keptDeltas {
	return &keptDeltas{planned: make(chan struct{}), left: model / keptPart, byPair: map[deltaPair]*keptDelta{}}
}

// plan says which deltas will be there. It is called once.
func (k *keptDeltas) plan(patches []*patch) {
	if k == nil {
		return
	}
	k.mu.Lock()
	for _, one := range patches {
		k.byPair[one.pair()] = &keptDelta{settled: make(chan struct{})}
	}
	k.mu.Unlock()
	close(k.planned)
}

// settle keeps a delta; nil for one that was not had. What is settled already stays.
func (k *keptDeltas) settle(pair deltaPair, data []byte) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	one := k.byPair[pair]
	select {
	case <-one.settled:
		return
	default:
	}
	if n := int64(len(data)); data != nil && n <= k.left {
		k.left -= n
		one.data = data
	}
	close(one.settled)
}

// find waits until the delta is settled and returns it, or nil if it was not kept or ctx ends first.
func (k *keptDeltas) find(ctx context.Context, pair deltaPair) []byte {
	if k == nil {
		return nil
	}
	if !closed(ctx, k.planned) {
		return nil
	}
	k.mu.Lock()
	one := k.byPair[pair]
	k.mu.Unlock()
	if one == nil || !closed(ctx, one.settled) {
		return nil
	}
	return one.data
}

// closed waits until a channel is closed, and reports whether it was before ctx ended.
func closed(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

// recording writes down a delta that comes from the network, up to what may be kept. Its methods do nothing on nil.
type recording struct {
	text  bytes.Buffer
	limit int64
	over  bool
	reads int
}

// record begins one; nil where nothing is kept.
func (k *keptDeltas) record() *recording {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return &recording{limit: k.left}
}

// Write implements io.Writer. It never fails: what is too much is forgotten.
func (r *recording) Write(p []byte) (int, error) {
	if r == nil || r.over {
		return len(p), nil
	}
	if r.over = int64(r.text.Len()+len(p)) > r.limit; r.over {
		r.text = bytes.Buffer{}
		return len(p), nil
	}
	return r.text.Write(p)
}

// of is the delta that was written down of one that was applied; nil where it is not to be kept. One that came by
// several answers is computed: both versions are here.
func (r *recording) of(one *patch) []byte {
	switch {
	case r == nil || r.over:
		return nil
	case r.reads == 1:
		return r.text.Bytes()
	}
	encoder, err := delta.NewEncoder()
	if err != nil {
		return nil
	}
	var out []byte
	size, element := int64(len(one.data)), delta.ElementBytes(one.entry.DType.BitSize())
	for i := range delta.Segments(size) {
		begin, end := delta.Segment(size, i)
		if out = encoder.Segment(out, one.old[begin:end], one.data[begin:end], element); int64(len(out)) > r.limit {
			return nil
		}
	}
	return out
}

// serveDelta answers a peer that has the tensor of the version before, named by its digest.
func (o *offer) serveDelta(w http.ResponseWriter, r *http.Request, pair deltaPair) {
	ctx, cancel := context.WithTimeout(r.Context(), offerStall)
	defer cancel()
	defer context.AfterFunc(o.ctx, cancel)()
	data := o.deltas.find(ctx, pair)
	if data == nil {
		http.Error(w, "there is no delta of that", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	control := http.NewResponseController(w)
	for len(data) > 0 {
		_ = control.SetWriteDeadline(time.Now().Add(offerStall)) // where there is none, the peer's own patience ends it
		n, err := w.Write(data[:min(len(data), readBytes)])
		if err != nil || o.ctx.Err() != nil {
			panic(http.ErrAbortHandler) // the length was promised
		}
		data = data[n:]
	}
}

package mirror

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// deltaCacheFraction limits the deltas kept for other mirrors to 1/deltaCacheFraction of the size of the model.
const deltaCacheFraction = 4

// keptDeltas holds the deltas with which a version was made from the previous one, for mirrors with the same previous
// version. Each has been applied here and has produced the digest in the manifest. The methods do nothing on nil.
type keptDeltas struct {
	planned chan struct{} // closed when byPair is complete

	mu     sync.Mutex
	left   int64 // remaining bytes that can be kept
	byPair map[deltaPair]*keptDelta
}

// deltaPair identifies a delta by the tensors before and after it.
type deltaPair struct{ base, tensor modelwire.Sum }

// keptDelta is one delta.
type keptDelta struct {
	settled chan struct{} // closed when data is final
	data    []byte        // nil if the delta was not kept
}

func newKeptDeltas(model int64) *keptDeltas {
	return &keptDeltas{planned: make(chan struct{}), left: model / deltaCacheFraction, byPair: map[deltaPair]*keptDelta{}}
}

// plan sets which deltas are expected. It is called once.
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

// settle stores a delta; nil if it is not available. It does not change a settled delta.
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

// find waits until the delta is settled and returns it. It returns nil if the delta was not kept or ctx ends first.
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

// closed waits until a channel is closed or ctx ends. It reports whether the channel was closed.
func closed(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

// recording copies a delta as it is received, up to the size limit. Its methods do nothing on nil.
type recording struct {
	text  bytes.Buffer
	limit int64
	over  bool
	reads int
}

// record starts a recording. It returns nil if no deltas are kept.
func (k *keptDeltas) record() *recording {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return &recording{limit: k.left}
}

// Write implements io.Writer. It never fails: over the limit, the recording is discarded.
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

// of returns the recorded delta of an applied patch; nil if it will not be kept. A delta that was received in several
// responses is recomputed from the two versions.
func (r *recording) of(one *patch) []byte {
	switch {
	case r == nil || r.over:
		return nil
	case r.reads == 1:
		return r.text.Bytes()
	}
	again := &recording{limit: r.limit}
	err := modelwire.WriteDelta(again, one.Entry.Bytes, modelwire.ElementBytes(one.Entry.DType), 0, func(begin, end int64) (old, now []byte, err error) {
		if again.over {
			return nil, nil, ErrTooLarge
		}
		return one.old[begin:end], one.Data()[begin:end], nil
	})
	if err != nil || again.over {
		return nil
	}
	return again.text.Bytes()
}

// serveDelta serves a delta to a peer that has the tensor of the previous version, identified by its digest.
func (o *offer) serveDelta(w http.ResponseWriter, r *http.Request, pair deltaPair) {
	ctx, cancel := context.WithTimeout(r.Context(), offerStall)
	defer cancel()
	defer context.AfterFunc(o.ctx, cancel)()
	data := o.deltas.find(ctx, pair)
	if data == nil {
		http.Error(w, "there is no delta of that", http.StatusNotFound)
		return
	}
	content := &modelwire.Content{}
	content.AddBytes(data)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	if _, err := content.Send(w, int64(len(data))); err != nil {
		panic(http.ErrAbortHandler) // the announced length cannot be sent
	}
}

package mirror

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/retry"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

const (
	// pickPatience limits how long a mirror waits for a slot at a peer or the source. After that it fetches from the
	// source without one.
	pickPatience = 5 * time.Second
	// originPatience is how long a mirror waits for a peer that is ahead of it, although the source has a free slot.
	originPatience = time.Second
	// peerStall limits how long a peer may send nothing. It is short because there are other sources.
	peerStall = 5 * time.Second
	// maxPeers limits the mirrors that are considered.
	maxPeers = 10_000
)

// picker selects the source of one version's bytes: a mirror that has more of it than this one, or the model's source.
// Each source has a fixed number of slots in NATS. Mirrors that start together thereby form a chain, in which each link
// carries the model once. A mirror fetches only from mirrors that are ahead of it, so the chain has no cycle.
type picker struct {
	peers  *Peers
	model  modelwire.Digest
	origin string
	done   *atomic.Int64 // bytes that this mirror has
	from   atomic.Pointer[peer]
	moved  atomic.Int64 // bytes received from peers

	choosing sync.Mutex
	mu       sync.Mutex
	seen     map[string]peerEntry
	changed  chan struct{}
	listed   chan struct{} // belongs to the running search; closed when it has received all existing entries
	bad      map[string]bool
	running  sync.WaitGroup
}

// peer is a selected source of bytes. Its source is nil if it is the model's source.
type peer struct {
	id     string
	source *source
	slot   string // empty if no slot is held
	stop   context.CancelFunc
}

// pick returns a picker for a model. The caller closes it. Without Peers it returns nil.
func (p *Peers) pick(m *Mirror, model modelwire.Digest, done *atomic.Int64) *picker {
	if p == nil {
		return nil
	}
	sum := sha256.Sum256([]byte(m.options.Source))
	k := &picker{
		peers: p, model: model, origin: "source-" + hex.EncodeToString(sum[:8]), done: done, seen: map[string]peerEntry{},
		bad: map[string]bool{p.id: true}, changed: make(chan struct{}),
	}
	return k
}

// close releases the slot. Closing nil does nothing.
func (k *picker) close() {
	if k == nil {
		return
	}
	k.drop(k.from.Load(), false)
	k.running.Wait()
}

// watch updates the list of mirrors that have the model until ctx ends. Only mirrors that search for a peer watch: if a
// thousand mirrors watched all the time, each announcement would cost a thousand messages.
func (k *picker) watch(ctx context.Context, kv jetstream.KeyValue) {
	k.mu.Lock()
	clear(k.seen)
	k.mu.Unlock()
	listed := sync.OnceFunc(func() { close(k.listed) })
	defer listed()
	w, err := kv.Watch(ctx, "have."+k.model.Sum.String()+".*")
	if err != nil {
		return // the source will be used
	}
	defer func() { _ = w.Stop() }() // best effort: the watch is no longer used
	for {
		select {
		case <-ctx.Done():
			return
		case e, open := <-w.Updates():
			switch {
			case !open:
				return
			case e == nil: // all existing entries have been received
				listed()
			default:
				k.note(e)
			}
		}
	}
}

func (k *picker) note(e jetstream.KeyValueEntry) {
	got, ok := parsePeer(e.Key(), e.Value())
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case e.Operation() != jetstream.KeyValuePut:
		delete(k.seen, e.Key())
	case ok && k.peers.usable(got) && (len(k.seen) < maxPeers || k.seen[e.Key()].id != ""):
		k.seen[e.Key()] = got
	}
	close(k.changed)
	k.changed = make(chan struct{})
}

// source returns the source to fetch from; nil for the model's source. Failures are reported to the returned peer.
func (k *picker) source(ctx context.Context, a *attempts) (*source, *peer) {
	if k == nil {
		return nil, nil
	}
	k.choosing.Lock()
	defer k.choosing.Unlock()
	one := k.from.Load()
	if one == nil {
		one = k.choose(ctx, a)
		k.from.Store(one)
	}
	return one.source, one
}

// choose acquires a slot at a mirror that is ahead, or at the source. If none becomes free for a while, it returns the
// source.
func (k *picker) choose(ctx context.Context, a *attempts) *peer {
	kv, err := k.peers.bucket(ctx)
	if err == nil {
		k.listed = make(chan struct{})
		watching, stop := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Go(func() { k.watch(watching, kv) })
		defer running.Wait()
		defer stop()
		select {
		case <-k.listed:
		case <-ctx.Done():
		case <-time.After(peersTimeout):
		}
	}
	for begin := time.Now(); err == nil && ctx.Err() == nil && time.Since(begin) < pickPatience; {
		list, changed := k.candidates()
		for _, e := range list {
			if one := k.claim(ctx, kv, e.id); one != nil {
				u, _ := url.Parse(e.URL) // parsePeer has validated it
				one.source = &source{base: u, token: k.peers.options.Token, client: k.peers.client, attempts: a.forPeers()}
				return one
			}
		}
		// If mirrors are ahead but all their slots are in use, the mirrors that hold those slots will soon be ahead
		// too.
		if len(list) == 0 || time.Since(begin) > originPatience {
			if one := k.claim(ctx, kv, k.origin); one != nil {
				return one
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(time.Duration(50+rand.IntN(100)) * time.Millisecond):
		}
	}
	return &peer{id: k.origin}
}

// candidates returns the mirrors that have more than this one, most bytes first.
func (k *picker) candidates() (list []peerEntry, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	mine := k.done.Load()
	for _, e := range k.seen {
		if e.Done > mine && !k.bad[e.id] {
			list = append(list, e)
		}
	}
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	slices.SortStableFunc(list, func(a, b peerEntry) int { return cmp.Compare(b.Done, a.Done) })
	return list, k.changed
}

// claim acquires a slot at a mirror and holds it until it is dropped. It returns nil if all slots are in use.
func (k *picker) claim(ctx context.Context, kv jetstream.KeyValue, id string) *peer {
	for n := range k.peers.options.Fanout {
		key := slotKey(k.model.Sum, id, n)
		asking, cancel := context.WithTimeout(ctx, peersTimeout)
		_, err := kv.Create(asking, key, []byte(k.peers.id))
		cancel()
		if err != nil {
			continue
		}
		one := &peer{id: id, slot: key}
		var holding context.Context
		holding, one.stop = context.WithCancel(context.Background())
		k.running.Go(func() { k.hold(holding, kv, key) })
		return one
	}
	return nil
}

// hold renews a slot until ctx ends, and then releases it.
func (k *picker) hold(ctx context.Context, kv jetstream.KeyValue, key string) {
	for retry.Sleep(ctx, peersLast/3) == nil {
		asking, cancel := context.WithTimeout(ctx, peersTimeout)
		_, _ = kv.Put(asking, key, []byte(k.peers.id)) // best effort: a lost slot only slows down a link
		cancel()
	}
	asking, cancel := context.WithTimeout(context.Background(), peersTimeout)
	defer cancel()
	_ = kv.Purge(asking, key) // best effort: the slot expires
}

// drop releases the current peer, because it failed or the model is complete.
func (k *picker) drop(one *peer, failed bool) {
	if k == nil || one == nil {
		return
	}
	if failed && one.source != nil {
		k.mu.Lock()
		k.bad[one.id] = true
		k.mu.Unlock()
	}
	if k.from.CompareAndSwap(one, nil) && one.stop != nil {
		one.stop()
	}
}

// where returns the address of the current source for display.
func (k *picker) where() string {
	if k != nil {
		if one := k.from.Load(); one != nil && one.source != nil {
			return one.source.base.Host
		}
	}
	return ""
}

// peerPath returns the path of a model's tensor at a mirror.
func peerPath(model, tensor modelwire.Digest) string {
	return "/v1/mirrors/" + model.Sum.String() + "/" + tensor.Sum.String()
}

var _ http.Handler = (*Peers)(nil)

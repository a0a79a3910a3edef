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

	"github.com/sharedtensor/sharedtensor/module"
)

const (
	// pickPatience is how long a mirror waits until it may take from somebody, before it asks the source like everybody.
	pickPatience = 5 * time.Second
	// originPatience is how long it waits for one of those that have more, though the source has time for it.
	originPatience = time.Second
	// peerStall is how long a peer may send nothing: there are others.
	peerStall = 5 * time.Second
	// maxPeers bounds the mirrors that are considered.
	maxPeers = 10_000
)

// picker finds where the bytes of one version are taken from: at one mirror that is further than this one, or at the
// source. Whoever is taken from has so many slots, in NATS, so that mirrors that begin together make a chain, in which
// each link carries the model once. Nobody takes from one that is not further, so that the chain is no circle.
type picker struct {
	peers  *Peers
	model  module.Digest
	origin string
	done   *atomic.Int64 // of this mirror
	from   atomic.Pointer[peer]
	moved  atomic.Int64 // bytes that came from peers

	choosing sync.Mutex
	mu       sync.Mutex
	seen     map[string]peerEntry
	changed  chan struct{}
	listed   chan struct{} // of the search that goes on: closed when those are known who had the model before it
	bad      map[string]bool
	running  sync.WaitGroup
}

// peer is who bytes are taken from. Its source is nil where it is the model's own.
type peer struct {
	id     string
	source *source
	slot   string // empty where none is held
	stop   context.CancelFunc
}

// pick begins to look for mirrors that have a model. The caller closes the picker. Without Peers there is none.
func (p *Peers) pick(m *Mirror, model module.Digest, done *atomic.Int64) *picker {
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

// close gives the slot back. Closing nil does nothing.
func (k *picker) close() {
	if k == nil {
		return
	}
	k.drop(k.from.Load(), false)
	k.running.Wait()
}

// watch keeps the list of those who have the model, until ctx ends. Only mirrors that look for another do: a thousand
// that were told of each other all the time would be a million messages for each word.
func (k *picker) watch(ctx context.Context, kv jetstream.KeyValue) {
	k.mu.Lock()
	clear(k.seen)
	k.mu.Unlock()
	listed := sync.OnceFunc(func() { close(k.listed) })
	defer listed()
	w, err := kv.Watch(ctx, "have."+k.model.String()+".*")
	if err != nil {
		return // then the source is asked
	}
	defer func() { _ = w.Stop() }() // it is not asked any more
	for {
		select {
		case <-ctx.Done():
			return
		case e, open := <-w.Updates():
			switch {
			case !open:
				return
			case e == nil: // that was all there is
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
	case ok && (len(k.seen) < maxPeers || k.seen[e.Key()].id != ""):
		k.seen[e.Key()] = got
	}
	close(k.changed)
	k.changed = make(chan struct{})
}

// source is where to ask now; nil for the model's own source. The peer is what a failure is told about.
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

// choose takes a slot at one that is further, or at the source. One that cannot have any for long asks the source.
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
		list, changed := k.further()
		for _, e := range list {
			if one := k.claim(ctx, kv, e.id); one != nil {
				u, _ := url.Parse(e.URL) // it was checked
				one.source = &source{base: u, token: k.peers.options.Token, client: k.peers.client, attempts: a.forPeers()}
				return one
			}
		}
		// Where some have more, and all give already, those that take from them will have more in a moment.
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

// further are the mirrors that have more than this one, those with the most first.
func (k *picker) further() (list []peerEntry, changed <-chan struct{}) {
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

// claim takes a slot at somebody, and keeps it until it is dropped; nil where there is none.
func (k *picker) claim(ctx context.Context, kv jetstream.KeyValue, id string) *peer {
	for n := range k.peers.options.Fanout {
		key := slotKey(k.model, id, n)
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

// hold renews a slot until ctx ends, and gives it back.
func (k *picker) hold(ctx context.Context, kv jetstream.KeyValue, key string) {
	for sleep(ctx, peersLast/3) == nil {
		asking, cancel := context.WithTimeout(ctx, peersTimeout)
		_, _ = kv.Put(asking, key, []byte(k.peers.id)) // one that is lost makes a link slower, and no bytes wrong
		cancel()
	}
	asking, cancel := context.WithTimeout(context.Background(), peersTimeout)
	defer cancel()
	_ = kv.Purge(asking, key) // else it is over soon
}

// drop gives up who was taken from, because it failed or because all is here.
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

// where is the address that bytes come from, for people.
func (k *picker) where() string {
	if k != nil {
		if one := k.from.Load(); one != nil && one.source != nil {
			return one.source.base.Host
		}
	}
	return ""
}

// peerPath is where a mirror has a tensor of a model.
func peerPath(model, tensor module.Digest) string {
	return "/v1/mirrors/" + model.String() + "/" + tensor.String()
}

var _ http.Handler = (*Peers)(nil)

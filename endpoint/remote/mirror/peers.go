package mirror

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
	"github.com/sharedtensor/sharedtensor/module"
)

const (
	// peersBucket is the bucket of NATS in which mirrors say what they have.
	peersBucket = "sharedtensor_mirrors"
	// peersLast is how long an entry stays that nobody renews: its mirror may be dead.
	peersLast = 15 * time.Second
	// announceEvery is how often it is looked whether there is something to say about how far a model is.
	announceEvery = 20 * time.Millisecond
	// peersTimeout bounds one request to NATS. Peers save time; one that costs more is done without.
	peersTimeout = 2 * time.Second
)

// PeersOptions say how mirrors reach each other.
type PeersOptions struct {
	// URL is where other mirrors reach the handler of these Peers, as https://HOST:2537; without one, this mirror takes
	// from others and gives nothing.
	URL string
	// Token is what peers ask for. It goes to every mirror that NATS names, so NATS has to be closed to strangers.
	Token string
	// TLS is how peers are reached; nil for the certificate authorities of this system.
	TLS *tls.Config
	// Fanout is how many mirrors take from one at the same time: 1 where it is zero. Each that takes halves what the
	// others get of a link, while a chain costs next to nothing.
	Fanout int
}

// Peers is what the mirrors of one cluster know of each other, by NATS: who has which model, how far, and who takes
// from whom. What they say is not believed: bytes are held to the digests that the source gave.
//
//	peers, err := mirror.NewPeers(conn, mirror.PeersOptions{URL: "http://10.0.0.7:2537"})
//	mux.Handle(mirror.PeersPattern, peers)
type Peers struct {
	options PeersOptions
	js      jetstream.JetStream
	id      string
	client  *http.Client

	mu     sync.Mutex
	offers map[module.Digest]*offer
}

// PeersPattern is what [Peers] answers.
const PeersPattern = "GET /v1/mirrors/{model}/{tensor}"

// NewPeers makes Peers over a connection, which it borrows. It asks NATS for nothing yet.
func NewPeers(conn *nats.Conn, options PeersOptions) (*Peers, error) {
	if options.Fanout < 0 {
		return nil, errors.New("a negative fan-out")
	}
	setDefault(&options.Fanout, 1)
	if options.URL != "" {
		if err := checkPeerURL(options.URL); err != nil {
			return nil, err
		}
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("mirrors on NATS: %w", err)
	}
	return &Peers{
		options: options, js: js, id: nuid.Next(), offers: map[module.Digest]*offer{},
		client: store.NewHTTPClient(options.TLS, DefaultConnections, sameHost),
	}, nil
}

func checkPeerURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil {
		return fmt.Errorf("%q is not https://HOST:PORT", text)
	}
	return nil
}

// bucket opens the bucket, and makes it where it is not there.
func (p *Peers) bucket(ctx context.Context) (jetstream.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, peersTimeout)
	defer cancel()
	kv, err := p.js.KeyValue(ctx, peersBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = p.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: peersBucket, Description: "who has which model", TTL: peersLast, Storage: jetstream.MemoryStorage, MaxBytes: 64 << 20,
		})
	}
	return kv, err
}

// peerEntry is what a mirror says of itself and one model.
type peerEntry struct {
	URL   string `json:"url"`
	Done  int64  `json:"done"`
	Total int64  `json:"total"`

	id string
}

func haveKey(model module.Digest, id string) string { return "have." + model.String() + "." + id }

// slotKey is held by the mirror that takes from another. Only one can make it.
func slotKey(model module.Digest, from string, n int) string {
	return fmt.Sprintf("slot.%s.%s.%d", model, from, n)
}

// parsePeer reads an entry. One that does not hold is none.
func parsePeer(key string, text []byte) (e peerEntry, ok bool) {
	if json.Unmarshal(text, &e) != nil || e.Done < 0 || e.Done > e.Total || checkPeerURL(e.URL) != nil {
		return e, false
	}
	e.id = key[strings.LastIndexByte(key, '.')+1:]
	return e, true
}

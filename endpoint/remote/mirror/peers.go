package mirror

import (
	"cmp"
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
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

const (
	// peersBucket is the NATS bucket in which mirrors announce their models.
	peersBucket = "sharedtensor_mirrors"
	// peersLast is the lifetime of an entry that is not renewed, because its mirror may have failed.
	peersLast = 15 * time.Second
	// announceEvery is the interval at which the progress of a model is checked for announcements.
	announceEvery = 20 * time.Millisecond
	// peersTimeout limits a request to NATS. Peers only save time, so slow requests are abandoned.
	peersTimeout = 2 * time.Second
)

// PeersOptions configures how mirrors reach each other.
type PeersOptions struct {
	// URL is the address at which other mirrors reach this Peers' handler, as https://HOST:2537. Without it, this
	// mirror fetches from others but serves nothing. A loopback address is announced only if NATS is on this host.
	URL string
	// Token is the token that peers require. It is sent over https to hosts in Trusted, and to mirrors of this user on
	// this host.
	Token string
	// Trusted lists the hosts to fetch from: names, *.DOMAIN, addresses and networks. If it is empty, a mirror without
	// a token fetches from all hosts, and a mirror with a token only from this host.
	Trusted []string
	// TLS configures connections to peers; nil means the system's certificate authorities.
	TLS *tls.Config
	// Fanout is the number of mirrors that fetch from one mirror at once; 1 if it is zero. A second one halves the
	// bandwidth of the first, while a longer chain costs little.
	Fanout int
}

// Peers coordinates the mirrors of one cluster through NATS. It tracks which mirror has how much of each model, and
// which mirror fetches from which. Announcements are not trusted: all bytes are verified with the source's digests.
//
//	peers, err := mirror.NewPeers(conn, mirror.PeersOptions{URL: "http://10.0.0.7:2537"})
//	mux.Handle(mirror.PeersPattern, peers)
type Peers struct {
	options PeersOptions
	trusted trusted
	js      jetstream.JetStream
	id      string
	client  *http.Client

	mu     sync.Mutex
	offers map[modelwire.Sum]*offer
}

// PeersPattern is the route of [Peers].
const PeersPattern = "GET /v1/mirrors/{model}/{tensor}"

// NewPeers returns Peers that use a connection, which it borrows. It sends no request to NATS.
func NewPeers(conn *nats.Conn, options PeersOptions) (*Peers, error) {
	if options.Fanout < 0 {
		return nil, errors.New("the fan-out is negative")
	}
	options.Fanout = cmp.Or(options.Fanout, 1)
	trusted, err := parseTrusted(options.Trusted)
	if err != nil {
		return nil, err
	}
	if options.URL, err = ownAddress(options.URL, conn); err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("mirrors on NATS: %w", err)
	}
	p := &Peers{
		options: options, trusted: trusted, js: js, id: nuid.Next(), offers: map[modelwire.Sum]*offer{},
		client: store.NewHTTPClient(options.TLS, DefaultConnections, sameHost),
	}
	p.checkUsers(p.client)
	return p, nil
}

func checkPeerURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil {
		return fmt.Errorf("%q is not https://HOST:PORT", text)
	}
	return nil
}

// bucket opens the bucket, and creates it if it does not exist.
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

// peerEntry is a mirror's announcement of one model.
type peerEntry struct {
	URL   string `json:"url"`
	Done  int64  `json:"done"`
	Total int64  `json:"total"`
	// Host is the hostID of the mirror. It shows whether a loopback address refers to the same host.
	Host string `json:"host,omitempty"`

	id string
}

func haveKey(model modelwire.Sum, id string) string { return "have." + model.String() + "." + id }

// slotKey returns the key of slot n at a mirror. Only one mirror can create and hold it.
func slotKey(model modelwire.Sum, from string, n int) string {
	return fmt.Sprintf("slot.%s.%s.%d", model, from, n)
}

// parsePeer validates and returns an entry.
func parsePeer(key string, text []byte) (e peerEntry, ok bool) {
	if json.Unmarshal(text, &e) != nil || e.Done < 0 || e.Done > e.Total || checkPeerURL(e.URL) != nil {
		return e, false
	}
	e.id = key[strings.LastIndexByte(key, '.')+1:]
	return e, true
}

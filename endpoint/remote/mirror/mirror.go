package mirror

import (
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
	"github.com/sharedtensor/sharedtensor/module"
)

// Defaults of Options.
const (
	DefaultConnections = 4
	DefaultRangeBytes  = 16 << 20
	DefaultMaxBytes    = 64 << 30
	DefaultStall       = 30 * time.Second
	DefaultPatience    = time.Minute
	DefaultPoll        = 15 * time.Second
	DefaultLease       = time.Minute
)

// Options say what is mirrored, and from where to where. Zero values stand for the defaults.
type Options struct {
	// Source is https://HOST:2537/NAME at a gateway, or NAME@VERSION for a version other than the newest; or where
	// safetensors files are: file:///PATH, hf://ORG/MODEL[@REVISION], oci://HOST/REPOSITORY[:TAG|@DIGEST] or
	// s3://BUCKET/KEY.
	Source string
	// Name is the name at the owner of this host; that of the source where it is empty.
	Name string
	// Owner is the owner that the model is published at. Borrowed: it outlives the Mirror, and is attached with Device
	// among its devices.
	Owner *endpoint.Client
	// Device is where the model goes: memory that the processor addresses, such as that of package host. Borrowed.
	Device driver.Device
	// Token is the token that a gateway or the hub asks for. It is sent to the source's host only. Registries and
	// buckets take what their own tools have: Docker's configuration, and Amazon's variables and files.
	Token string
	// TLS is how an https source is reached; nil for the certificate authorities of this system.
	TLS *tls.Config
	// Connections is how many ranges are on their way at once, RangeBytes how long each is.
	Connections int
	RangeBytes  int64
	// MaxBytes bounds the memory of a model.
	MaxBytes int64
	// Digest is what the model has to be (Result.Digest); any will do where it is zero.
	Digest module.Digest
	// Digests has the digests of the tensors computed also where the source is no gateway: registries and the hub have
	// digests of files, which are compared in any case, and buckets and folders often none. It is another pass of
	// SHA-256 over all bytes, for Result.Digest and for the digests that a version of the owner carries.
	Digests bool
	// Stall is how long the source may send nothing before its connection is given up, Patience how long connections
	// may fail without getting any further before Pull gives up. Follow goes on.
	Stall, Patience time.Duration
	// Lease is how long a gateway keeps the version that is fetched, and then the one that deltas are made from, without
	// hearing of this mirror; a second at least.
	Lease time.Duration
	// Poll is how often Follow looks at a source that is no gateway.
	Poll time.Duration
	// Peers are the other mirrors, from which a gateway's model is taken where they have it; nil for none. Borrowed.
	Peers *Peers
	// Events is told what goes on, from one goroutine at a time; it may be nil.
	Events func(Event)
}

// Event is something that happens to a mirror.
type Event struct {
	// Kind is one of the kinds below.
	Kind string `json:"event"`
	// Version is the version at the source.
	Version uint64 `json:"source_version,omitempty"`
	// Done and Total are bytes of the model that are in place and that it has, Moved those that came over the network.
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
	Moved int64 `json:"moved"`
	// From is the mirror that bytes come from; empty where they come from the source.
	From string `json:"from,omitempty"`
	// Error is why something is tried again.
	Error string `json:"error,omitempty"`
	// Result is what was published.
	Result *Result `json:"result,omitempty"`
}

// Kinds of events.
const (
	// EventFound is a version that will be fetched; its manifest is right and its memory there.
	EventFound = "found"
	// EventProgress comes a few times a second while bytes are moved.
	EventProgress = "progress"
	// EventRetry is an attempt that failed and will be made again.
	EventRetry = "retry"
	// EventPublished is a version that was published.
	EventPublished = "published"
	// EventUnchanged is a version of the source that the owner has already, by its digests.
	EventUnchanged = "unchanged"
)

// Result is a version of the source that the owner of this host has.
type Result struct {
	// Name and Version are what it is called at the owner of this host, SourceVersion what at the source.
	Name          string `json:"name"`
	Version       uint64 `json:"version"`
	Source        string `json:"source"`
	SourceVersion uint64 `json:"source_version,omitempty"`
	// Revision is the source with what was found there, where it has no numbers: a commit, a digest.
	Revision string `json:"revision,omitempty"`
	// Digest is what module.StateDictDigest is of the model, in hexadecimal. It is empty where the source is no gateway
	// and nobody asked for it: see Options.Digests.
	Digest string `json:"digest,omitempty"`
	// Tensors is how many names it has, Bytes the size of their elements.
	Tensors int   `json:"tensors"`
	Bytes   int64 `json:"bytes"`
	// Moved is how many bytes came over the network, manifest and all. Copied is how many of the model's were copied
	// from a version that was here, Patched how many belong to tensors that were made of those of the version before by
	// what has changed in them.
	// FromPeers is how many of Moved other mirrors gave.
	Moved     int64 `json:"moved"`
	FromPeers int64 `json:"from_peers,omitempty"`
	Copied    int64 `json:"copied"`
	Patched   int64 `json:"patched"`
	// Unchanged says that nothing was published: Version is that which was there.
	Unchanged bool `json:"unchanged,omitempty"`
	// Seconds is how long it took.
	Seconds float64 `json:"seconds"`
}

// Mirror mirrors one model. Its methods must not be called at the same time.
type Mirror struct {
	options  Options
	attempts *attempts
	source   *source     // a gateway; nil where there is a place
	place    store.Place // where files are; nil where there is a gateway
	base     *base       // what is here already; nil before the first Pull, and where there is nothing
	known    knownVersion
	picker   atomic.Pointer[picker] // while a version is fetched
	giving   *offer                 // the version that is fetched, as other mirrors have it
	telling  sync.Mutex             // held while Options.Events is called
}

// knownVersion is the version of the source that was seen last.
type knownVersion struct {
	server  string
	version uint64
}

// New checks the options. It connects to nothing. The caller closes the mirror.
func New(options Options) (*Mirror, error) {
	if options.Owner == nil || options.Device == nil {
		return nil, errors.New("a mirror needs an owner and a device")
	}
	setDefault(&options.Connections, DefaultConnections)
	setDefault(&options.RangeBytes, DefaultRangeBytes)
	setDefault(&options.MaxBytes, DefaultMaxBytes)
	setDefault(&options.Stall, DefaultStall)
	setDefault(&options.Patience, DefaultPatience)
	setDefault(&options.Poll, DefaultPoll)
	setDefault(&options.Lease, DefaultLease)
	if options.Connections < 0 || options.RangeBytes < 0 || options.MaxBytes < 0 || options.Stall < 0 || options.Patience < 0 || options.Poll < 0 ||
		options.Lease < time.Second {
		return nil, fmt.Errorf("%w: a negative limit", driver.ErrInvalid)
	}
	m := &Mirror{options: options, attempts: &attempts{stall: options.Stall, patience: options.Patience, moved: &atomic.Int64{}}}
	m.attempts.retry = func(err error) { m.emit(Event{Kind: EventRetry, Error: err.Error()}) }
	if store.Is(options.Source) {
		place, err := store.Open(options.Source, store.Options{Token: options.Token, TLS: options.TLS, Connections: options.Connections})
		if err != nil {
			return nil, err
		}
		m.place = place
		setDefault(&m.options.Name, place.Name())
		return m, nil
	}
	base, name, version, err := parseSource(options.Source)
	if err != nil {
		return nil, err
	}
	setDefault(&m.options.Name, name)
	m.source = &source{
		base: base, name: name, version: version, token: options.Token, attempts: m.attempts,
		client: store.NewHTTPClient(options.TLS, options.Connections, sameHost),
	}
	return m, nil
}

// DefaultName is the name of a model at the owner here where Options have none, or why the address is none.
func DefaultName(source string) (string, error) {
	if store.Is(source) {
		place, err := store.Open(source, store.Options{})
		if err != nil {
			return "", err
		}
		defer place.Close()
		return place.Name(), nil
	}
	_, name, _, err := parseSource(source)
	return name, err
}

func setDefault[T comparable](value *T, to T) {
	var zero T
	if *value == zero {
		*value = to
	}
}

// Close gives the leases at the source back and forgets what was here. What was published stays.
func (m *Mirror) Close() error {
	err := m.base.close()
	m.base = nil
	if m.place != nil {
		m.place.Close()
	} else {
		m.source.client.CloseIdleConnections()
	}
	return err
}

// Package mirror copies a model from elsewhere to the owner on this host. The source is another host's gateway, or
// safetensors files in a folder, on the Hugging Face hub, in an OCI registry, or in a bucket.
//
//	m, err := mirror.New(mirror.Options{Source: "https://gpu7:2537/llm", Owner: client, Device: dev})
//	result, err := m.Pull(ctx)    // once
//	err = m.Follow(ctx)           // and each newest version after that
//
// The bytes are copied from the connections directly to one new slab of shared memory, in several ranges at once. The
// BLAKE3 or SHA-256 of each tensor of a gateway, and the SHA-256 of each file of a registry or the hub, is verified. The slab is published as
// the next version only if all digests match. Readers of the owner get the old version or the new one, always complete.
//
// # Trust
//
// The source is not trusted. The manifest's size is limited, and it is validated before memory is allocated. A response
// must contain the requested range. Redirects must stay on the host. Bytes must match the digests of the manifest. If
// both the manifest and the bytes are forged, only Options.Digest detects it.
//
// # Transfers that are avoided
//
// Tensors that this host's owner already has in the newest version of the name are recognized by their digests and
// copied. Tensors that have partly changed are updated with deltas from the source, or from another mirror
// ([Options.Peers]) that was updated from the same version.
package mirror

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
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

// Options configures a mirror. Zero values mean the defaults.
type Options struct {
	// Source is https://HOST:2537/NAME at a gateway, or NAME@VERSION for a fixed version. Safetensors files are
	// file:///PATH, hf://ORG/MODEL[/FOLDER][@REVISION], oci://HOST/REPOSITORY[:TAG|@DIGEST], s3://BUCKET/KEY or
	// gs://BUCKET/KEY.
	Source string
	// Name is the model's name at this host's owner; empty means the source's name.
	Name string
	// Owner publishes the model. Borrowed: it must outlive the Mirror and have Device among its devices.
	Owner *endpoint.Client
	// Device holds the model. The CPU must be able to address its memory, as with package host. Borrowed.
	Device driver.Device
	// Token is the token for a gateway or the hub. It is sent to the source's host only. Registries and buckets use the
	// credentials of Docker's, Amazon's and Google's tools: Docker's configuration, Amazon's environment variables,
	// files and roles, and Google's application default credentials.
	Token string
	// PlainToken permits sending Token to another host without TLS.
	PlainToken bool
	// TLS configures https connections to the source; nil means the system's certificate authorities.
	TLS *tls.Config
	// Connections is the number of ranges fetched at once, RangeBytes the size of each. Ranges that BLAKE3 verifies are
	// multiples of [modelwire.ChunkBytes].
	Connections int
	RangeBytes  int64
	// MaxBytes limits the memory of a model.
	MaxBytes int64
	// Digest is the expected digest of the model (Result.Digest); zero accepts any model. Its hash function is used for
	// the transfer from a gateway. Otherwise that is BLAKE3, or SHA-256 if the gateway supports only that.
	Digest modelwire.Digest
	// Digests computes the digests of tensors if the source is not a gateway. Registries and the hub provide digests of
	// files, which are always verified; buckets and folders often provide none. This costs another SHA-256 pass over
	// all bytes. The digests are used for Result.Digest and published with the version.
	Digests bool
	// Stall limits the time that a connection may receive nothing. Patience limits the time that Pull retries without
	// progress. Follow retries forever.
	Stall, Patience time.Duration
	// Lease is how long a gateway holds the version being fetched, and later the base of deltas, without a renewal; at
	// least one second.
	Lease time.Duration
	// Poll is the interval at which Follow polls a source that is not a gateway.
	Poll time.Duration
	// Peers provides other mirrors, from which a gateway's model is fetched if they have it; nil for none. Borrowed.
	Peers *Peers
	// Known records the digests of versions for other components of this process, and provides digests that they have
	// recorded. nil means that there are no others. Borrowed.
	Known *modelwire.Digests
	// Events receives events, one at a time; it may be nil.
	Events func(Event)
}

// Event describes the progress of a mirror.
type Event struct {
	// Kind is one of the constants below.
	Kind string `json:"event"`
	// Version is the version at the source.
	Version uint64 `json:"source_version,omitempty"`
	// Done is the number of bytes in place, Total the size of the model, and Moved the bytes received over the network.
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
	Moved int64 `json:"moved"`
	// From is the mirror that sends the bytes; empty if it is the source.
	From string `json:"from,omitempty"`
	// Error is the reason for a retry.
	Error string `json:"error,omitempty"`
	// Result is the published version.
	Result *Result `json:"result,omitempty"`
}

// Kinds of events.
const (
	// EventFound reports a version that will be fetched. Its manifest is valid and its memory is allocated.
	EventFound = "found"
	// EventProgress is sent a few times a second during a transfer.
	EventProgress = "progress"
	// EventRetry reports a failed attempt that will be retried.
	EventRetry = "retry"
	// EventPublished reports a published version.
	EventPublished = "published"
	// EventUnchanged reports a version that the owner already has, by its digests.
	EventUnchanged = "unchanged"
)

// Result describes a version of the source at this host's owner.
type Result struct {
	// Name and Version identify it at this host's owner, SourceVersion at the source.
	Name          string `json:"name"`
	Version       uint64 `json:"version"`
	Source        string `json:"source"`
	SourceVersion uint64 `json:"source_version,omitempty"`
	// Revision identifies a version of a source without version numbers: its address with a commit or digest.
	Revision string `json:"revision,omitempty"`
	// Digest is the model's digest, as modelwire.ParseDigest reads it. It is empty if the source is not a gateway and
	// Options.Digests is not set.
	Digest string `json:"digest,omitempty"`
	// Tensors is the number of names, Bytes the size of their elements.
	Tensors int   `json:"tensors"`
	Bytes   int64 `json:"bytes"`
	// Moved is the number of bytes received over the network, including the manifest. Copied counts bytes copied from a
	// local version. Patched counts the bytes of tensors that were updated from the previous version with deltas.
	// FromPeers is the part of Moved that other mirrors sent.
	Moved     int64 `json:"moved"`
	FromPeers int64 `json:"from_peers,omitempty"`
	Copied    int64 `json:"copied"`
	Patched   int64 `json:"patched"`
	// Unchanged reports that nothing was published: Version existed already.
	Unchanged bool `json:"unchanged,omitempty"`
	// Seconds is the duration.
	Seconds float64 `json:"seconds"`
}

// Mirror mirrors one model. Its methods must not be called concurrently.
type Mirror struct {
	options  Options
	attempts *attempts
	source   *source     // a gateway; nil if place is set
	place    store.Place // location of files; nil if source is set
	base     *base       // local version to copy from; nil before the first Pull, and if there is none
	known    knownVersion
	picker   atomic.Pointer[picker] // set during a transfer
	giving   *offer                 // the version being fetched, offered to other mirrors
	telling  sync.Mutex             // held while Options.Events is called
}

// knownVersion is the last version seen at the source.
type knownVersion struct {
	server  string
	version uint64
}

// New validates the options and returns a mirror. It does not connect. The caller closes the mirror.
func New(options Options) (*Mirror, error) {
	if options.Owner == nil || options.Device == nil {
		return nil, errors.New("a mirror needs an owner and a device")
	}
	options.Connections = cmp.Or(options.Connections, DefaultConnections)
	options.RangeBytes = cmp.Or(options.RangeBytes, DefaultRangeBytes)
	options.MaxBytes = cmp.Or(options.MaxBytes, DefaultMaxBytes)
	options.Stall = cmp.Or(options.Stall, DefaultStall)
	options.Patience = cmp.Or(options.Patience, DefaultPatience)
	options.Poll = cmp.Or(options.Poll, DefaultPoll)
	options.Lease = cmp.Or(options.Lease, DefaultLease)
	options.Known = cmp.Or(options.Known, &modelwire.Digests{})
	if options.Connections < 0 || options.RangeBytes < 0 || options.MaxBytes < 0 || options.Stall < 0 || options.Patience < 0 || options.Poll < 0 ||
		options.Lease < time.Second {
		return nil, fmt.Errorf("%w: a negative limit", driver.ErrInvalid)
	}
	m := &Mirror{options: options, attempts: &attempts{stall: options.Stall, patience: options.Patience, moved: &atomic.Int64{}}}
	m.attempts.retry = func(err error) { m.emit(Event{Kind: EventRetry, Error: err.Error()}) }
	if store.Is(options.Source) {
		place, err := store.Open(options.Source, store.Options{Token: options.Token, PlainToken: options.PlainToken, TLS: options.TLS, Connections: options.Connections})
		if err != nil {
			return nil, err
		}
		if options.Digest.Hash != modelwire.SHA256 {
			place.Close()
			return nil, fmt.Errorf("%w: digests of the source %s are SHA-256", driver.ErrInvalid, options.Source)
		}
		m.place = place
		m.options.Name = cmp.Or(m.options.Name, place.Name())
		return m, nil
	}
	base, name, version, err := parseSource(options.Source)
	if err != nil {
		return nil, err
	}
	m.options.Name = cmp.Or(m.options.Name, name)
	if options.Token != "" && !options.PlainToken && base.Scheme != "https" && !local.Reached(base.Hostname()) {
		return nil, fmt.Errorf("the source %s would receive the token in clear text: use https, or --insecure-token to send it anyway", base)
	}
	m.source = &source{
		base: base, name: name, version: version, token: options.Token, attempts: m.attempts,
		client: store.NewHTTPClient(options.TLS, options.Connections, sameHost),
	}
	return m, nil
}

// DefaultName returns the default of Options.Name for a source. It returns an error if the source is invalid.
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

// Close releases the leases at the source and the local base. Published versions remain.
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

// Package bins stores named lists of values on NATS JetStream. Processes on any host can put, append, take and watch
// them.
//
//	store, err := bins.Open(ctx, conn, bins.Options{Namespace: "rollouts"})
//	_, err = store.Append(ctx, "episodes", bins.Value{Type: "application/json", Body: text})
//	items, err := store.Take(ctx, "episodes", bins.TakeOptions{Wait: true})
//	events, err := store.Listen(ctx, "episodes")
//
// A bin holds items in the order in which they were written. Put replaces all items by one, Append adds one, Take
// returns and removes them, and Peek returns them without removing them. A bin without items does not exist.
//
// # Guarantees
//
// A write that returns without an error is stored. It survives the end of the writer, a restart of the server and, with
// three replicas, the loss of one. A write whose outcome is unknown fails with [ErrOutcomeUnknown]. Until its context
// ends, the package repeats it under the same message id, so the server stores it once.
//
// Take delivers every item to at most one caller. It reads the items first and then removes them with one message. If
// the taker is killed before this message, the next taker gets all items. If it is killed after this message and before
// its caller has used the items, they are lost. They may also be lost if Take fails with [ErrOutcomeUnknown]. An
// application that needs every item processed uses a [Queue], which redelivers an item until it is acknowledged. Take
// and Delete remove the items that they have read and leave newer ones, so continuous writers do not delay them.
//
// Listeners receive every change while they are connected, and the resulting state after a gap.
//
// # Layout in JetStream
//
// Each namespace is one stream, BINS_<namespace>. Items are messages on bin.<namespace>.<name>; Put rolls this subject
// up. Take and Delete write a claim on bin-take.<namespace>.<name>: a message with the sequence number up to which all
// items are removed. It is stored only if no other claim was stored since its writer read the bin. Take returns after
// the claim is stored. The items and their bodies are removed in the background, and then a message that expires
// replaces the claim. If the taker is killed in between, the next reader or [Store.Sweep] removes them. Bodies above
// [Options].Inline are in the object store BINS_<namespace> under names that are never reused.
package bins

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// Defaults of [Options].
const (
	DefaultMaxBytes     = 4 << 30
	DefaultMaxItemBytes = 1 << 30
	DefaultInline       = 256 << 10
)

const (
	duplicateWindow = 2 * time.Minute // the server ignores repeated message ids for this long
	probeTTL        = time.Second     // minimum of JetStream
	objectChunk     = 1 << 20         // bytes of one piece of a body in the object store
	requestTimeout  = 5 * time.Second // limits one request to the server; the caller's context limits all attempts
	removalTimeout  = 10 * time.Minute

	// claimWindow limits the time between reading a bin and the last attempt to store a claim on it. It is much shorter
	// than settledTTL, so claims that a taker missed still exist while it may act on what it read.
	claimWindow = 30 * time.Second
	settledTTL  = 5 * time.Minute
	// takenGrace is the age of a claim after which other processes remove its items.
	takenGrace = 10 * time.Second
)

// Options configures a [Store].
type Options struct {
	// Namespace separates the bins of applications. It has 1 to 64 letters, digits, '-' and '_'.
	Namespace string
	// MaxBytes limits the inline items of the namespace. Larger bodies may use the same amount again. Writes over the
	// limit fail with [ErrFull]. It applies when the namespace is created. Zero means DefaultMaxBytes.
	MaxBytes int64
	// MaxItemBytes limits the body of one item. Zero means DefaultMaxItemBytes.
	MaxItemBytes int64
	// Inline is the largest body that is stored in the message itself. It must leave room for headers within the
	// server's maximum payload. Zero means DefaultInline.
	Inline int
	// Replicas is the number of servers that store each item. Zero means 1.
	Replicas int
	// Memory keeps the namespace in the server's memory. A restart of the server loses it.
	Memory bool
	// Logger receives messages for operators. Nil means slog.Default().
	Logger *slog.Logger
}

// Store is one namespace of bins. Its methods are safe for concurrent use. It borrows its connection and needs no
// Close.
type Store struct {
	bodies
	opts    Options
	conn    *nats.Conn
	js      jetstream.JetStream
	stream  jetstream.Stream
	batches *natslink.Batches
	clock   *natslink.Clock
	window  time.Duration // claimWindow
}

// Open opens the namespace and creates it if it is missing. It borrows conn, which should be from natslink.Connect.
func Open(ctx context.Context, conn *nats.Conn, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	if err := opts.check(conn.MaxPayload()); err != nil {
		return nil, err
	}
	js, err := natslink.JetStream(conn)
	if err != nil {
		return nil, fmt.Errorf("open the bins %q: %w", opts.Namespace, err)
	}
	s := &Store{opts: opts, conn: conn, js: js, batches: natslink.NewBatches(conn, "BINS_"+opts.Namespace)}
	if s.stream, err = openStream(ctx, js, opts.stream()); err != nil {
		return nil, fmt.Errorf("open the bins %q: %w", opts.Namespace, err)
	}
	s.clock, s.window = natslink.NewClock(s.stream), claimWindow
	if s.bodies, err = openBodies(ctx, js, "BINS_"+opts.Namespace, opts, conn.MaxPayload()); err != nil {
		return nil, fmt.Errorf("open the bodies of the bins %q: %w", opts.Namespace, err)
	}
	return s, nil
}

// Namespace returns the name of the store's namespace.
func (s *Store) Namespace() string { return s.opts.Namespace }

func (o Options) withDefaults() Options {
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxItemBytes == 0 {
		o.MaxItemBytes = DefaultMaxItemBytes
	}
	if o.Inline == 0 {
		o.Inline = DefaultInline
	}
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

func (o Options) check(maxPayload int64) error {
	if n := len(o.Namespace); n == 0 || n > 64 || strings.Trim(o.Namespace, tokenLetters) != "" {
		return fmt.Errorf("bins: invalid namespace %q: use 1 to 64 letters, digits, '-' and '_'", o.Namespace)
	}
	if int64(o.Inline)+maxHeaderBytes > maxPayload {
		return fmt.Errorf("bins: Inline of %d bytes does not fit the server's maximum payload of %d bytes: lower Inline to %d or less",
			o.Inline, maxPayload, maxPayload-maxHeaderBytes)
	}
	return nil
}

func (o Options) storage() jetstream.StorageType {
	if o.Memory {
		return jetstream.MemoryStorage
	}
	return jetstream.FileStorage
}

func (o Options) stream() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "BINS_" + o.Namespace, Description: "sharedtensor bins", Subjects: []string{"bin." + o.Namespace + ".>", "bin-take." + o.Namespace + ".>"},
		Storage: o.storage(), Replicas: o.Replicas, MaxBytes: o.MaxBytes, Discard: jetstream.DiscardNew,
		AllowRollup: true, AllowDirect: true, AllowMsgTTL: true, Duplicates: duplicateWindow,
	}
}

// openStream opens a stream and creates it if it is missing. It keeps the limits of an existing stream, which belong to
// its creator, and adds what this version needs.
func openStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig) (stream jetstream.Stream, err error) {
	err = natslink.Ask(ctx, func(ctx context.Context) error {
		stream, err = js.Stream(ctx, config.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			stream, err = js.CreateOrUpdateStream(ctx, config)
		}
		if err != nil {
			return err
		}
		if found := stream.CachedInfo().Config; addNeeded(&found, config) {
			stream, err = js.UpdateStream(ctx, found)
		}
		return err
	})
	return stream, unreserved(config.MaxBytes, err)
}

// unreserved adds the remedy to the error of a server that has no room for the limit of a new stream.
func unreserved(bytes int64, err error) error {
	if err == nil || !isFull(err) {
		return err
	}
	return fmt.Errorf("%w: the server cannot reserve %d bytes for it: lower MaxBytes, drop a namespace, or raise the server's limit (--max-store of a gateway): %w", ErrFull, bytes, err)
}

// addNeeded adds the subjects and features of config to an older configuration. It reports whether any were missing.
func addNeeded(found *jetstream.StreamConfig, config jetstream.StreamConfig) (changed bool) {
	for _, subject := range config.Subjects {
		if !slices.Contains(found.Subjects, subject) {
			found.Subjects, changed = append(found.Subjects, subject), true
		}
	}
	if config.AllowDirect && !found.AllowDirect {
		found.AllowDirect, changed = true, true
	}
	return changed
}

// info requests the state of the stream.
func (s *Store) info(ctx context.Context, opts ...jetstream.StreamInfoOpt) (info *jetstream.StreamInfo, err error) {
	err = natslink.Ask(ctx, func(ctx context.Context) error {
		info, err = s.stream.Info(ctx, opts...)
		return err
	})
	return info, err
}

func openBodies(ctx context.Context, js jetstream.JetStream, bucket string, o Options, maxPayload int64) (bodies, error) {
	objects, err := natslink.OpenObjects(ctx, js, jetstream.ObjectStoreConfig{
		Bucket: bucket, Description: "bodies of sharedtensor bins", Storage: o.storage(), Replicas: o.Replicas, MaxBytes: o.MaxBytes,
	})
	return bodies{
		bucket: bucket, objects: objects, maxPayload: maxPayload, maxItem: o.MaxItemBytes, log: o.Logger, background: &background{},
	}, unreserved(o.MaxBytes, err)
}

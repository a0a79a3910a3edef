// Package bins keeps named lists of values on NATS JetStream, where processes of any host put, append, take and watch
// them.
//
//	store, err := bins.Open(ctx, conn, bins.Options{Namespace: "rollouts"})
//	_, err = store.Append(ctx, "episodes", bins.Value{Type: "application/json", Body: text})
//	items, err := store.Take(ctx, "episodes", bins.TakeOptions{Wait: true})
//	events, err := store.Listen(ctx, "episodes")
//
// A bin has items in the order in which they were written. Put replaces all of them by one, Append adds one, Take
// returns and removes them, Peek returns and keeps them. A bin without items does not exist.
//
// # What is promised
//
// A write that returned without an error is stored: it survives the end of the writer and a restart of the server, and
// on three replicas the loss of one. A write whose outcome cannot be known ends with [ErrOutcomeUnknown]; until its
// context ends the package repeats it under the same message id, so that the server stores it once. Take gives every
// item to exactly one caller; a caller that dies with what it took has lost it, and so may one whose Take ends with
// [ErrOutcomeUnknown]. Listeners hear of every change while they are connected, and after a gap of the state that it
// left.
//
// # How it lies in JetStream
//
// Each namespace is one stream, BINS_<namespace>. Items are messages on bin.<namespace>.<name>; Put and Take roll the
// subject up, Take under the condition that nothing was written since it read. What Take leaves is an empty message
// that lives for a second. A Take of some items writes, under the same condition, a message that says up to which they
// are gone, and removes them. Bodies above [Options].Inline lie in the object store BINS_<namespace> under names that
// are never used twice.
package bins

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
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
	duplicateWindow = 2 * time.Minute // in which a repeated message id stores nothing
	tombstoneTTL    = time.Second     // the least that JetStream allows
	objectChunk     = 1 << 20         // bytes of a piece of a body in the object store
	requestTimeout  = 5 * time.Second // of one request to the server; the caller's context bounds all attempts
)

// Options says which bins a [Store] opens and how much they may hold.
type Options struct {
	// Namespace separates the bins of one application from those of others: 1 to 64 letters, digits, '-' and '_'.
	Namespace string
	// MaxBytes bounds all items of the namespace that lie inline, and as much again is allowed for larger bodies.
	// Beyond it a write is refused with [ErrFull]. It takes effect when the namespace is made. Zero stands for
	// DefaultMaxBytes.
	MaxBytes int64
	// MaxItemBytes bounds the body of one item. Zero stands for DefaultMaxItemBytes.
	MaxItemBytes int64
	// Inline is the largest body that is stored in the message itself. It must leave room for headers in the server's
	// largest message. Zero stands for DefaultInline.
	Inline int
	// Replicas is the number of servers that keep each item; zero stands for 1.
	Replicas int
	// Memory keeps the namespace in the server's memory: a restart of the server loses it.
	Memory bool
	// Logger gets what operators should know. Nil stands for slog.Default().
	Logger *slog.Logger
}

// Store is one namespace of bins. Its methods are safe for concurrent use. It borrows its connection and needs no
// Close.
type Store struct {
	bodies
	opts   Options
	conn   *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
	// inboxes has no reference to the store: its subscriptions end when nobody has the store any more.
	inboxes   *inboxes
	takesSome atomic.Bool // announceTakes has said so
}

// Open opens the namespace and makes it where it is missing. It borrows conn, which should be one of natslink.Connect.
func Open(ctx context.Context, conn *nats.Conn, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	if err := opts.check(conn.MaxPayload()); err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("open the bins %q: %w", opts.Namespace, err)
	}
	s := &Store{opts: opts, conn: conn, js: js, inboxes: &inboxes{conn: conn}}
	runtime.AddCleanup(s, (*inboxes).close, s.inboxes)
	if s.stream, err = openStream(ctx, js, opts.stream()); err != nil {
		return nil, fmt.Errorf("open the bins %q: %w", opts.Namespace, err)
	}
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
		return fmt.Errorf("bins: %q is no namespace: 1 to 64 letters, digits, '-' and '_' are", o.Namespace)
	}
	if int64(o.Inline)+maxHeaderBytes > maxPayload {
		return fmt.Errorf("bins: %d bytes inline do not fit the server's messages of %d bytes: lower Inline to %d or less",
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
		Name: "BINS_" + o.Namespace, Description: "sharedtensor bins", Subjects: []string{"bin." + o.Namespace + ".>"},
		Storage: o.storage(), Replicas: o.Replicas, MaxBytes: o.MaxBytes, Discard: jetstream.DiscardNew,
		AllowRollup: true, AllowDirect: true, AllowMsgTTL: true, Duplicates: duplicateWindow,
	}
}

// openStream makes a stream, or takes the one that is there as it is: its limits belong to those who made it.
func openStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig) (stream jetstream.Stream, err error) {
	err = natslink.Ask(ctx, func(ctx context.Context) error {
		stream, err = js.Stream(ctx, config.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			stream, err = js.CreateOrUpdateStream(ctx, config)
		}
		return err
	})
	return stream, err
}

// info asks for the state of the stream.
func (s *Store) info(ctx context.Context, opts ...jetstream.StreamInfoOpt) (info *jetstream.StreamInfo, err error) {
	err = natslink.Ask(ctx, func(ctx context.Context) error {
		info, err = s.stream.Info(ctx, opts...)
		return err
	})
	return info, err
}

func openBodies(ctx context.Context, js jetstream.JetStream, bucket string, o Options, maxPayload int64) (bodies, error) {
	var objects jetstream.ObjectStore
	err := natslink.Ask(ctx, func(ctx context.Context) (err error) {
		objects, err = js.ObjectStore(ctx, bucket)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			objects, err = js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{
				Bucket: bucket, Description: "bodies of sharedtensor bins", Storage: o.storage(), Replicas: o.Replicas, MaxBytes: o.MaxBytes,
			})
		}
		return err
	})
	return bodies{bucket: bucket, objects: objects, maxPayload: maxPayload, log: o.Logger}, err
}

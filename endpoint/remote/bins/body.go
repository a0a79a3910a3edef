package bins

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// object is a body in the object store.
type object struct {
	name   string
	digest string // sha256, hex
}

// bodies is the object store of a namespace or a queue.
type bodies struct {
	objects    *natslink.Objects
	bucket     string
	maxPayload int64
	maxItem    int64 // bytes of the largest body that load returns
	log        *slog.Logger
	background *background
}

// background runs removals without blocking callers.
type background struct {
	mu      sync.Mutex
	running int
	idle    chan struct{} // closed when running becomes 0
}

// start runs remove with a context that allows for a few requests.
func (b *background) start(remove func(context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running == 0 {
		b.idle = make(chan struct{})
	}
	b.running++
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), removalTimeout)
		defer cancel()
		defer b.done()
		remove(ctx)
	}()
}

func (b *background) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running--; b.running == 0 {
		close(b.idle)
	}
}

// wait waits until all removals are done or ctx ends.
func (b *background) wait(ctx context.Context) error {
	b.mu.Lock()
	idle, running := b.idle, b.running
	b.mu.Unlock()
	if running == 0 {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// storeBody stores a body in the object store under a new name. Objects are never overwritten, because that fails their
// readers.
func (s *bodies) storeBody(ctx context.Context, body []byte) (object, error) {
	sum := sha256.Sum256(body)
	o := object{name: nuid.Next(), digest: hex.EncodeToString(sum[:])}
	meta := jetstream.ObjectMeta{Name: o.name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: uint32(min(objectChunk, max(s.maxPayload-1024, 1024)))}}
	open := func() io.ReadCloser { return io.NopCloser(bytes.NewReader(body)) }
	if _, err := natslink.PutObject(ctx, s.objects, meta, open); err != nil {
		s.dropBodies(o.name)
		return object{}, err
	}
	return o, nil
}

// dropBodies removes unreferenced objects in the background. Sweep removes any that remain. Empty names are skipped.
func (s *bodies) dropBodies(names ...string) {
	objects := make([]string, 0, len(names))
	for _, name := range names {
		if name != "" {
			objects = append(objects, name)
		}
	}
	if len(objects) > 0 {
		s.background.start(func(ctx context.Context) { s.removeBodies(ctx, objects) })
	}
}

// removeBodies removes objects and returns the number removed. It stops at the first failure, because the others would
// fail too.
func (s *bodies) removeBodies(ctx context.Context, names []string) (removed int) {
	for i, name := range names {
		try, cancel := context.WithTimeout(ctx, requestTimeout)
		err := s.objects.Remove(try, name)
		cancel()
		if err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
			s.log.Debug("bins: unused bodies remain until the next sweep", "bucket", s.bucket, "bodies", len(names)-i, "error", err)
			return removed
		}
		if err == nil {
			removed++
		}
	}
	return removed
}

// Drain waits until the bodies and messages of removed items are deleted, or until ctx ends. Removals run in the
// background. Call Drain before the process exits to leave less work for the next sweep.
func (s *bodies) Drain(ctx context.Context) error { return s.background.wait(ctx) }

// load completes the item of a message: it reads the body from the object store and verifies its size and digest.
func (s *bodies) load(ctx context.Context, m stored) (Item, error) {
	if m.damage != nil {
		return Item{}, m.damage
	}
	if m.object == "" && int64(len(m.item.Body)) != m.size {
		return Item{}, fmt.Errorf("%w: item %d has %d bytes, but %d in its header", ErrCorrupt, m.item.Sequence, len(m.item.Body), m.size)
	}
	if m.size > s.maxItem {
		return Item{}, fmt.Errorf("%w: item %d has %d bytes: raise MaxItemBytes (%d)", ErrTooLarge, m.item.Sequence, m.size, s.maxItem)
	}
	if m.object == "" {
		return m.item, nil
	}
	body, err := natslink.ReadObject(ctx, s.objects, m.object, func(info *jetstream.ObjectInfo) error {
		if info.Size != uint64(m.size) {
			return fmt.Errorf("%w: the body of item %d has %d bytes, but %d in its header", ErrCorrupt, m.item.Sequence, info.Size, m.size)
		}
		return nil
	})
	if err != nil {
		return Item{}, s.bodyError(m, err)
	}
	if sha256.Sum256(body) != m.digest {
		return Item{}, fmt.Errorf("%w: the digest of item %d does not match its header", ErrCorrupt, m.item.Sequence)
	}
	m.item.Body = body
	return m.item, nil
}

// errBodyGone means that a body was removed while it was read, because its item was taken or replaced.
var errBodyGone = errors.New("the body was removed")

func (s *bodies) bodyError(m stored, err error) error {
	switch {
	case errors.Is(err, jetstream.ErrObjectNotFound):
		return fmt.Errorf("item %d: %w", m.item.Sequence, errBodyGone)
	case errors.Is(err, jetstream.ErrDigestMismatch), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: body of item %d: %w", ErrCorrupt, m.item.Sequence, err)
	}
	return fmt.Errorf("body of item %d: %w", m.item.Sequence, err)
}

// Sweep removes leftovers of killed processes that are older than grace: bodies that no item references, pieces of
// unfinished uploads, and the items of interrupted takes. It returns the number of removed bodies. One process of each
// namespace should call it periodically. grace must exceed the longest write; an hour is ample.
func (s *Store) Sweep(ctx context.Context, grace time.Duration) (removed int, err error) {
	defer func() { err = wrap("sweep", "*", err) }()
	taken, err := s.finishTakes(ctx, min(grace, takenGrace))
	if err != nil {
		return taken, err
	}
	removed, err = s.objects.Sweep(ctx, grace, s.namedBodies)
	return taken + removed, err
}

// namedBodies returns the names of all bodies that items reference.
func (s *Store) namedBodies(ctx context.Context) (names map[string]bool, err error) {
	err = again(ctx, func() error {
		names = map[string]bool{}
		return s.scan(ctx, s.prefix()+">", jetstream.ConsumerConfig{}, func(m jetstream.Msg, _ *jetstream.MsgMetadata) error {
			names[m.Headers().Get(headerObject)] = true
			return nil
		})
	})
	return names, err
}

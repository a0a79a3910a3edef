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
	bucket     string
	objects    jetstream.ObjectStore
	maxPayload int64
	log        *slog.Logger
}

// storeBody puts a body into the object store under a new name. Objects are never overwritten: readers of an object
// that is overwritten fail.
func (s *bodies) storeBody(ctx context.Context, body []byte) (object, error) {
	sum := sha256.Sum256(body)
	o := object{name: nuid.Next(), digest: hex.EncodeToString(sum[:])}
	meta := jetstream.ObjectMeta{Name: o.name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: uint32(min(objectChunk, max(s.maxPayload-1024, 1024)))}}
	open := func() io.ReadCloser { return io.NopCloser(bytes.NewReader(body)) }
	if _, err := natslink.PutObject(ctx, s.objects, meta, open); err != nil {
		s.dropBody(o.name)
		return object{}, err
	}
	return o, nil
}

// dropBody removes an object that no item names. What it cannot remove now, Sweep does later.
func (s *bodies) dropBody(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	if err := s.objects.Delete(ctx, name); err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
		s.log.Debug("bins: a body that no item names stays until the next sweep", "bucket", s.bucket, "object", name, "error", err)
	}
}

// load completes the item of a message: the body from the object store, checked by its size and digest.
func (s *bodies) load(ctx context.Context, m stored) (Item, error) {
	if m.object == "" {
		if int64(len(m.item.Body)) != m.size {
			return Item{}, fmt.Errorf("%w: item %d has %d bytes and says %d", ErrCorrupt, m.item.Sequence, len(m.item.Body), m.size)
		}
		return m.item, nil
	}
	body, err := natslink.ReadObject(ctx, s.objects, m.object, func(info *jetstream.ObjectInfo) error {
		if info.Size != uint64(m.size) {
			return fmt.Errorf("%w: the body of item %d has another size than the item says", ErrCorrupt, m.item.Sequence)
		}
		return nil
	})
	if err != nil {
		return Item{}, s.bodyError(m, err)
	}
	if sha256.Sum256(body) != m.digest {
		return Item{}, fmt.Errorf("%w: the body of item %d has another digest than the item says", ErrCorrupt, m.item.Sequence)
	}
	m.item.Body = body
	return m.item, nil
}

// errBodyGone means that a body was removed while it was read: somebody took or replaced its item.
var errBodyGone = errors.New("the body was removed")

func (s *bodies) bodyError(m stored, err error) error {
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return fmt.Errorf("item %d: %w", m.item.Sequence, errBodyGone)
	}
	return fmt.Errorf("body of item %d: %w", m.item.Sequence, err)
}

// sweepTimeout bounds a request of Sweep whose answer is a list.
const sweepTimeout = time.Minute

// Sweep removes bodies that no item names and that are older than grace: those of writers that died between the body
// and its item, of items that were replaced, and pieces of bodies that were never finished. It returns how many bodies
// it removed. One process of a namespace runs it now and then; grace must be longer than any write lasts, an hour is
// plenty.
func (s *Store) Sweep(ctx context.Context, grace time.Duration) (removed int, err error) {
	defer func() { err = wrap("sweep", "*", err) }()
	before := time.Now().Add(-grace)
	var bodies []*jetstream.ObjectInfo
	err = natslink.AskFor(ctx, sweepTimeout, func(ctx context.Context) (err error) {
		bodies, err = s.objects.List(ctx)
		return err
	})
	if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
		return 0, err
	}
	// The bodies are listed first: an item that is written later names a body that is younger than grace.
	named := map[string]bool{}
	err = again(ctx, func() error {
		return s.scan(ctx, s.prefix()+">", jetstream.ConsumerConfig{}, func(m jetstream.Msg, _ *jetstream.MsgMetadata) error {
			named[m.Headers().Get(headerObject)] = true
			return nil
		})
	})
	if err != nil {
		return 0, err
	}
	whole := map[string]bool{}
	for _, body := range bodies {
		whole[body.NUID] = true
		if named[body.Name] || body.ModTime.After(before) {
			continue
		}
		err := natslink.Ask(ctx, func(ctx context.Context) error { return s.objects.Delete(ctx, body.Name) })
		if err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
			return removed, err
		}
		removed++
	}
	return removed, s.sweepPieces(ctx, whole, before)
}

// sweepPieces removes pieces of objects that have no description, which an upload leaves when its process is killed.
func (s *Store) sweepPieces(ctx context.Context, whole map[string]bool, before time.Time) error {
	var stream jetstream.Stream
	var info *jetstream.StreamInfo
	pieces := "$O." + s.bucket + ".C."
	err := natslink.AskFor(ctx, sweepTimeout, func(ctx context.Context) (err error) {
		if stream, err = s.js.Stream(ctx, "OBJ_"+s.bucket); err == nil {
			info, err = stream.Info(ctx, jetstream.WithSubjectFilter(pieces+">"))
		}
		return err
	})
	if err != nil {
		return err
	}
	for subject := range info.State.Subjects {
		if whole[subject[len(pieces):]] {
			continue
		}
		var last *jetstream.RawStreamMsg
		err := natslink.Ask(ctx, func(ctx context.Context) (err error) {
			last, err = stream.GetLastMsgForSubject(ctx, subject)
			return err
		})
		if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && last.Time.After(before) {
			continue
		}
		if err != nil {
			return err
		}
		err = natslink.Ask(ctx, func(ctx context.Context) error { return stream.Purge(ctx, jetstream.WithPurgeSubject(subject)) })
		if err != nil {
			return err
		}
	}
	return nil
}

package natslink

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Objects is an object store that removes objects without leaving delete markers. The library's Delete publishes a
// marker for each object. A full disk refuses markers, and they are never removed.
type Objects struct {
	jetstream.ObjectStore
	conn    *nats.Conn
	stream  jetstream.Stream
	bucket  string
	batches *Batches
}

// OpenObjects opens an object store and creates it with config if it is missing.
func OpenObjects(ctx context.Context, js jetstream.JetStream, config jetstream.ObjectStoreConfig) (*Objects, error) {
	o := &Objects{conn: js.Conn(), bucket: config.Bucket}
	o.batches = NewBatches(o.conn, o.Stream())
	err := Ask(ctx, func(ctx context.Context) (err error) {
		o.ObjectStore, err = js.ObjectStore(ctx, config.Bucket)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			o.ObjectStore, err = js.CreateOrUpdateObjectStore(ctx, config)
		}
		if err == nil {
			o.stream, err = js.Stream(ctx, o.Stream())
		}
		return err
	})
	return o, err
}

// Stream returns the name of the stream that holds the objects.
func (o *Objects) Stream() string { return "OBJ_" + o.bucket }

// PieceSubject returns the subject of the pieces with an id.
func (o *Objects) PieceSubject(id string) string { return "$O." + o.bucket + ".C." + id }

// metaSubject returns the subject of the description of an object.
func (o *Objects) metaSubject(name string) string {
	return o.metas() + base64.URLEncoding.EncodeToString([]byte(name))
}

// metas returns the subject prefix of descriptions.
func (o *Objects) metas() string { return "$O." + o.bucket + ".M." }

// PurgeSubject removes all messages of a subject of the store.
func (o *Objects) PurgeSubject(ctx context.Context, subject string) error {
	return o.stream.Purge(ctx, jetstream.WithPurgeSubject(subject))
}

// InUse reports whether the store contains anything.
func (o *Objects) InUse(ctx context.Context) (bool, error) {
	info, err := o.stream.Info(ctx)
	return err == nil && info.State.Msgs > 0, err
}

// Subjects returns the subjects of the store that match a pattern, with their numbers of messages.
func (o *Objects) Subjects(ctx context.Context, pattern string) (map[string]uint64, error) {
	info, err := o.stream.Info(ctx, jetstream.WithSubjectFilter(pattern))
	if err != nil {
		return nil, err
	}
	return info.State.Subjects, nil
}

// Infos returns the descriptions of all objects, including markers of deleted ones. The library's List waits until its
// context ends if an object is removed meanwhile.
func (o *Objects) Infos(ctx context.Context) (infos []*jetstream.ObjectInfo, err error) {
	for next, more := uint64(1), true; more; {
		var batch []*nats.Msg
		pending := 0
		err = Ask(ctx, func(ctx context.Context) error {
			batch, pending, err = o.batches.Read(ctx, o.metas()+">", next)
			return err
		})
		if err != nil {
			return nil, err
		}
		more = pending > 0 && len(batch) > 0
		for _, msg := range batch {
			sequence, err := Sequence(msg)
			if err != nil {
				return nil, err
			}
			next = sequence + 1
			info := &jetstream.ObjectInfo{}
			if json.Unmarshal(msg.Data, info) != nil {
				continue // written by another program
			}
			info.ModTime, _ = time.Parse(time.RFC3339Nano, msg.Header.Get(jetstream.TimeStampHeaer))
			infos = append(infos, info)
		}
	}
	return infos, nil
}

// Remove removes an object. It returns jetstream.ErrObjectNotFound if the object does not exist.
func (o *Objects) Remove(ctx context.Context, name string) error {
	info, err := o.GetInfo(ctx, name, jetstream.GetObjectInfoShowDeleted())
	if err != nil {
		return err
	}
	// The description is removed first. A reader then finds no object instead of one whose pieces are missing.
	if err := o.PurgeSubject(ctx, o.metaSubject(name)); err != nil {
		return err
	}
	return o.PurgeSubject(ctx, o.PieceSubject(info.NUID))
}

// Missing reports whether the leader of the store does not have the object. Other replicas may lack an object that
// exists.
func (o *Objects) Missing(ctx context.Context, name string) (bool, error) {
	msg, err := LeaderMessage(ctx, o.conn, o.Stream(), MessageQuery{LastBySubject: o.metaSubject(name)})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	var info jetstream.ObjectInfo
	err = json.Unmarshal(msg.Data, &info)
	return info.Deleted, err
}

// Sweep removes three kinds of leftovers that are older than grace, by the server's clock: objects that needed does not return, markers of
// deleted objects, and pieces of uploads that never finished. It calls needed after it has listed the objects, so an
// object that a writer adds later is kept. A nil needed keeps all objects. Sweep returns the number of removed objects.
func (o *Objects) Sweep(ctx context.Context, grace time.Duration, needed func(context.Context) (map[string]bool, error)) (removed int, err error) {
	now, err := NewClock(o.stream).Now(ctx)
	if err != nil {
		return 0, err
	}
	before := now.Add(-grace)
	objects, err := o.Infos(ctx)
	if err != nil {
		return 0, err
	}
	var names map[string]bool
	if needed != nil && len(objects) > 0 {
		if names, err = needed(ctx); err != nil {
			return 0, err
		}
	}
	described := map[string]bool{}
	for _, object := range objects {
		described[object.NUID] = true
		if object.ModTime.After(before) || !object.Deleted && (needed == nil || names[object.Name]) {
			continue
		}
		err := Ask(ctx, func(ctx context.Context) error { return o.Remove(ctx, object.Name) })
		if err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
			return removed, err
		}
		if !object.Deleted {
			removed++
		}
	}
	return removed, o.sweepPieces(ctx, described, before)
}

// sweepPieces removes pieces without a description, which a killed writer leaves.
func (o *Objects) sweepPieces(ctx context.Context, described map[string]bool, before time.Time) error {
	var info *jetstream.StreamInfo
	err := Ask(ctx, func(ctx context.Context) (err error) {
		info, err = o.stream.Info(ctx, jetstream.WithSubjectFilter(o.PieceSubject("*")))
		return err
	})
	if err != nil {
		return err
	}
	for subject := range info.State.Subjects {
		if described[strings.TrimPrefix(subject, o.PieceSubject(""))] {
			continue
		}
		err := Ask(ctx, func(ctx context.Context) error {
			last, err := o.stream.GetLastMsgForSubject(ctx, subject)
			if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && last.Time.After(before) {
				return nil
			}
			if err != nil {
				return err
			}
			return o.PurgeSubject(ctx, subject)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// MessageQuery selects one message of a stream: the newest on a subject, or the first on a subject from a sequence
// number on.
type MessageQuery struct {
	Sequence      uint64 `json:"seq,omitempty"`
	NextBySubject string `json:"next_by_subj,omitempty"`
	LastBySubject string `json:"last_by_subj,omitempty"`
}

// Message is a message as the leader of a stream stores it.
type Message struct {
	Sequence uint64 `json:"seq"`
	Header   []byte `json:"hdrs"` // in wire format
	Data     []byte `json:"data"`
}

// LeaderMessage reads a message from the leader of a stream. The library's methods may read from any replica, which may
// lack the newest messages. The error is jetstream.ErrMsgNotFound if there is no such message.
func LeaderMessage(ctx context.Context, conn *nats.Conn, stream string, query MessageQuery) (*Message, error) {
	text, err := json.Marshal(query)
	if err != nil {
		return nil, err
	}
	answer := struct {
		Error   *jetstream.APIError `json:"error"`
		Message *Message            `json:"message"`
	}{}
	err = Ask(ctx, func(ctx context.Context) error {
		msg, err := conn.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+stream, text)
		if err != nil {
			return err
		}
		answer.Error, answer.Message = nil, nil
		if err := json.Unmarshal(msg.Data, &answer); err != nil {
			return err
		}
		switch {
		case answer.Error == nil && answer.Message == nil:
			return fmt.Errorf("the stream %q returned no message", stream)
		case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
			return jetstream.ErrMsgNotFound
		case answer.Error != nil:
			return answer.Error
		}
		return nil
	})
	return answer.Message, err
}

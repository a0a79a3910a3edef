package bins

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// WriteOption configures one Put or Append.
type WriteOption func(*writeOptions)

type writeOptions struct {
	id     string
	expect *uint64
	list   bool
	until  time.Time // no attempt starts later; zero means no limit
	// unanswered is the start of the first attempt under id that the server has not answered; zero if there is none.
	unanswered *time.Time
}

// WithID sets the id of the write. Writes of one namespace with the same id within the duplicate window of its stream,
// two minutes by default, are stored once, even from different processes. By default each call has a unique id.
func WithID(id string) WriteOption { return func(o *writeOptions) { o.id = id } }

// IfLast makes the write fail with [ErrConflict] unless sequence is that of the bin's newest item. 0 means an empty
// bin.
func IfLast(sequence uint64) WriteOption { return func(o *writeOptions) { o.expect = &sequence } }

// AsList puts a list: the body is a JSON array, and readers get each element as an item, before items that are appended
// later. The bin counts and takes the list as one item. This is how tensorshare puts lists. The error is [ErrNotList]
// if the body is not an array, or with Append.
func AsList() WriteOption { return func(o *writeOptions) { o.list = true } }

// ErrNotList means that a value cannot be put as a list.
var ErrNotList = errors.New("not a list: AsList needs a JSON array and Put")

// ErrConflict means that the bin does not satisfy the condition of a write.
var ErrConflict = errors.New("the bin has changed")

// Put replaces all items of the bin by v and returns its sequence number. Errors: [ErrName], [ErrTooLarge], [ErrFull],
// [ErrConflict], [ErrOutcomeUnknown].
func (s *Store) Put(ctx context.Context, bin string, v Value, opts ...WriteOption) (uint64, error) {
	return s.write(ctx, bin, opPut, v, opts)
}

// Append adds v after the items of the bin and returns its sequence number. It returns the same errors as [Store.Put].
func (s *Store) Append(ctx context.Context, bin string, v Value, opts ...WriteOption) (uint64, error) {
	return s.write(ctx, bin, opAppend, v, opts)
}

// newWrite returns the options of a write, with an id.
func newWrite(opts []WriteOption) writeOptions {
	o := writeOptions{unanswered: new(time.Time)}
	for _, set := range opts {
		set(&o)
	}
	if o.id == "" {
		o.id = nuid.Next()
	}
	return o
}

func (s *Store) write(ctx context.Context, bin, op string, v Value, opts []WriteOption) (_ uint64, err error) {
	defer func() { err = wrap(op, bin, err) }()
	if err := CheckName(bin); err != nil {
		return 0, err
	}
	if err := v.check(s.opts); err != nil {
		return 0, err
	}
	o := newWrite(opts)
	wanted := o.expect
	if o.list && (op != opPut || !isArray(v.Body)) {
		return 0, ErrNotList
	}
	if wanted != nil && *wanted > 0 {
		// A taken item stays in the stream for a moment and would still satisfy the condition.
		claim, err := s.newestClaim(ctx, bin)
		if err != nil {
			return 0, err
		}
		if claim.upTo >= *wanted {
			return 0, fmt.Errorf("%w: item %d was taken", ErrConflict, *wanted)
		}
	}
	for {
		sequence, err := s.send(ctx, s.js, s.stream, s.subject(bin), op, v, s.opts.Inline, o)
		if o.expect == nil || !errors.Is(err, ErrConflict) {
			return sequence, err
		}
		// Taken items may still be in the stream after the expected newest item.
		c, readErr := s.content(ctx, bin, 0)
		if errors.Is(err, errRepeated) {
			for _, m := range c.messages {
				if m.id == o.id { // stored by an earlier attempt that was not answered
					return m.item.Sequence, nil
				}
			}
		}
		if readErr != nil || c.newest() != *wanted || c.lastItem == *o.expect {
			return 0, err
		}
		o.expect = &c.lastItem
	}
}

func isArray(body []byte) bool {
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	return len(trimmed) > 0 && trimmed[0] == '[' && json.Valid(body)
}

// send stores a value as a message. A body over inline bytes is stored in the object store first.
func (s *bodies) send(
	ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, subject, op string, v Value, inline int, o writeOptions,
) (uint64, error) {
	msg, err := v.message(subject, op)
	if err != nil {
		return 0, err
	}
	if op == opPut {
		msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	}
	if o.list {
		msg.Header.Set(headerList, "1")
	}
	var body object
	if len(v.Body) <= inline {
		msg.Data = v.Body
	} else if body, err = s.storeBody(ctx, v.Body); err != nil {
		return 0, err
	} else {
		msg.Header.Set(headerObject, body.name)
		msg.Header.Set(headerDigest, body.digest)
	}
	ack, err := publish(ctx, js, stream, msg, o)
	if err != nil {
		if !errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, errRepeated) {
			s.dropBodies(body.name)
		}
		return 0, err
	}
	if ack.Duplicate && body.name != "" {
		s.background.start(func(ctx context.Context) { s.dropUnlessNamed(ctx, stream, ack.Sequence, body.name) })
	}
	return ack.Sequence, nil
}

// dropUnlessNamed removes a body if the item that was stored under the same message id references another one. If the
// item references this body, an earlier attempt of the same write stored it and its answer was lost. If the item is
// gone, Sweep decides.
func (s *bodies) dropUnlessNamed(ctx context.Context, stream jetstream.Stream, sequence uint64, name string) {
	var msg *jetstream.RawStreamMsg
	err := natslink.Ask(ctx, func(ctx context.Context) (err error) {
		msg, err = stream.GetMsg(ctx, sequence)
		return err
	})
	if err == nil && msg.Header.Get(headerObject) != name {
		s.removeBodies(ctx, []string{name})
	}
}

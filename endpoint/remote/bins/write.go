package bins

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// WriteOption changes one Put or Append.
type WriteOption func(*writeOptions)

type writeOptions struct {
	id     string
	expect *uint64
	list   bool
}

// WithID names the write. Writes of one namespace with the same id within two minutes are stored once, also when
// different processes make them. Without it each call has an id of its own.
func WithID(id string) WriteOption { return func(o *writeOptions) { o.id = id } }

// IfLast makes the write fail with [ErrConflict] unless sequence is that of the bin's newest item; 0 stands for an
// empty bin.
func IfLast(sequence uint64) WriteOption { return func(o *writeOptions) { o.expect = &sequence } }

// AsList puts a list: the body is a JSON array, and readers get each of its elements as an item, before what is
// appended later, as tensorshare does with a list that is put. As there, the bin counts the list as one item, and it is
// taken as one. Where the body is no array, or of an Append, the error is [ErrNotList].
func AsList() WriteOption { return func(o *writeOptions) { o.list = true } }

// ErrNotList is a value that was to be put as a list and is not a list.
var ErrNotList = errors.New("not a list: a JSON array is, and only Put takes one")

// ErrConflict means that the bin is no longer as the condition of a write says.
var ErrConflict = errors.New("the bin has changed")

// Put replaces all items of the bin by v and returns its sequence number. Errors: [ErrName], [ErrTooLarge], [ErrFull],
// [ErrConflict], [ErrOutcomeUnknown].
func (s *Store) Put(ctx context.Context, bin string, v Value, opts ...WriteOption) (uint64, error) {
	return s.write(ctx, bin, opPut, v, opts)
}

// Append adds v behind the items of the bin and returns its sequence number. Errors as for [Store.Put].
func (s *Store) Append(ctx context.Context, bin string, v Value, opts ...WriteOption) (uint64, error) {
	return s.write(ctx, bin, opAppend, v, opts)
}

func (s *Store) write(ctx context.Context, bin, op string, v Value, opts []WriteOption) (_ uint64, err error) {
	defer func() { err = wrap(op, bin, err) }()
	if err := CheckName(bin); err != nil {
		return 0, err
	}
	if err := v.check(s.opts); err != nil {
		return 0, err
	}
	o := writeOptions{}
	for _, set := range opts {
		set(&o)
	}
	wanted := o.expect
	if o.list && (op != opPut || !isArray(v.Body)) {
		return 0, ErrNotList
	}
	if o.id == "" {
		o.id = nuid.Next()
	}
	for {
		sequence, err := send(ctx, s.js, &s.bodies, s.subject(bin), op, v, s.opts.Inline, o)
		if o.expect == nil || !errors.Is(err, ErrConflict) {
			return sequence, err
		}
		// The newest message may be that of a take of some items, where the newest item is the one that is expected.
		c, readErr := s.content(ctx, bin)
		if readErr != nil || c.newest() != *wanted || c.last == *o.expect {
			return 0, err
		}
		o.expect = &c.last
	}
}

func isArray(body []byte) bool {
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	return len(trimmed) > 0 && trimmed[0] == '[' && json.Valid(body)
}

// send stores a value as a message, with its body in the message or beside it.
func send(
	ctx context.Context, js jetstream.JetStream, beside *bodies, subject, op string, v Value, inline int, o writeOptions,
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
	if len(v.Body) <= inline {
		msg.Data = v.Body
		ack, err := publish(ctx, js, msg, o)
		if err != nil {
			return 0, err
		}
		return ack.Sequence, nil
	}
	object, err := beside.storeBody(ctx, v.Body)
	if err != nil {
		return 0, err
	}
	msg.Header.Set(headerObject, object.name)
	msg.Header.Set(headerDigest, object.digest)
	ack, err := publish(ctx, js, msg, o)
	if err == nil && ack.Duplicate || err != nil && !errors.Is(err, ErrOutcomeUnknown) {
		beside.dropBody(object.name) // what was stored, if anything, names another body
	}
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// publish stores a message once. While the server does not answer it repeats the message under the same id.
func publish(ctx context.Context, js jetstream.JetStream, msg *nats.Msg, o writeOptions) (*jetstream.PubAck, error) {
	opts := []jetstream.PublishOpt{jetstream.WithMsgID(o.id), jetstream.WithRetryAttempts(1)}
	if o.expect != nil {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(*o.expect))
	}
	asked := false
	for attempt := 0; ; attempt++ {
		try, cancel := context.WithTimeout(ctx, requestTimeout)
		ack, err := js.PublishMsg(try, msg, opts...)
		cancel()
		switch {
		case err == nil:
			return ack, nil
		case lostRace(err) && asked:
			return settle(ctx, js, msg.Subject, o.id, err)
		case lostRace(err):
			return nil, fmt.Errorf("%w: %w", ErrConflict, err)
		case !isOutage(err) && asked:
			return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		case !isOutage(err):
			return nil, err
		}
		// Without responders the message reached no stream. Anything else may have been stored.
		asked = asked || !errors.Is(err, nats.ErrNoResponders)
		if pause(ctx, attempt) != nil {
			if asked {
				return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
			}
			return nil, fmt.Errorf("no server answers: %w", err)
		}
	}
}

// errRepeated is a conflict of a message of which an attempt before was not answered: that one may be what it is in
// conflict with, where the server has forgotten the message's id.
var errRepeated = errors.New("an attempt before was not answered")

// settle finds out whether a message was stored of which one attempt was not answered and the next one is in conflict.
// A server that stands alone compares the condition of a write before its id, so that the next attempt is in conflict
// with the one before. The id is what tells: the server stores it once in the whole stream. So an empty message with
// the same id goes where no bin is. If that one is a duplicate, the message was stored; if not, it was not, and never
// will be.
func settle(ctx context.Context, js jetstream.JetStream, subject, id string, conflict error) (*jetstream.PubAck, error) {
	parts := strings.SplitN(subject, ".", 3)
	probe := nats.NewMsg(parts[0] + "." + parts[1] + ".%") // no name is written so
	probe.Header.Set(jetstream.MsgTTLHeader, tombstoneTTL.String())
	for attempt, asked := 0, false; ; attempt++ {
		try, cancel := context.WithTimeout(ctx, requestTimeout)
		ack, err := js.PublishMsg(try, probe, jetstream.WithMsgID(id), jetstream.WithRetryAttempts(1))
		cancel()
		switch {
		case err == nil && ack.Duplicate && asked: // perhaps of the probe itself
			return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, conflict)
		case err == nil && ack.Duplicate:
			return ack, nil
		case err == nil:
			return nil, fmt.Errorf("%w: %w: %w", ErrConflict, errRepeated, conflict)
		case !isOutage(err):
			return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		}
		asked = asked || !errors.Is(err, nats.ErrNoResponders)
		if pause(ctx, attempt) != nil {
			return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		}
	}
}

// pause waits before another attempt.
func pause(ctx context.Context, attempt int) error { return natslink.Pause(ctx, attempt) }

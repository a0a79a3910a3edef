package bins

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// leastAttempt is the minimum timeout of one attempt to publish.
const leastAttempt = 500 * time.Millisecond

// publication is a message on its way to a stream. It is repeated under one id, which the server recognizes until the
// duplicate window of the stream ends.
type publication struct {
	js     jetstream.JetStream
	window time.Duration
	o      writeOptions
}

// unanswered records that the attempt that began at start may have been stored.
func (p *publication) unanswered(start time.Time) {
	if p.o.unanswered.IsZero() {
		*p.o.unanswered = start
	}
}

// asked reports whether an earlier attempt may have been stored.
func (p *publication) asked() bool { return !p.o.unanswered.IsZero() }

// over reports whether the server may soon forget the id of an unanswered attempt. Another attempt could then be stored
// a second time. The last quarter of the window covers the time on the way to the server.
func (p *publication) over() bool {
	return p.asked() && time.Since(*p.o.unanswered) >= p.window/4*3
}

// attempt sends a message once and waits for the answer.
func (p *publication) attempt(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	ctx, cancel := context.WithTimeout(ctx, min(requestTimeout, max(p.window/4, leastAttempt)))
	defer cancel()
	return p.js.PublishMsg(ctx, msg, append(opts, jetstream.WithMsgID(p.o.id), jetstream.WithRetryAttempts(1))...)
}

// publish stores a message once. While the server does not answer or the client's quota is used up, it repeats the message
// under the same id. It returns [ErrOutcomeUnknown] before the server forgets the id of the first unanswered attempt.
// Several calls may share an id: o.unanswered is the first such attempt of all of them.
func publish(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, msg *nats.Msg, o writeOptions) (*jetstream.PubAck, error) {
	if o.unanswered == nil {
		o.unanswered = new(time.Time)
	}
	p := &publication{js: js, window: stream.CachedInfo().Config.Duplicates, o: o}
	var opts []jetstream.PublishOpt
	if o.expect != nil {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(*o.expect))
	}
	if ctx.Err() != nil && !p.asked() {
		return nil, context.Cause(ctx)
	}
	var err error
	for attempt := 0; ; attempt++ {
		if p.over() {
			return nil, fmt.Errorf("%w: it was not confirmed within the duplicate window of %v: %w", ErrOutcomeUnknown, p.window, orTimeout(err))
		}
		start := time.Now()
		var ack *jetstream.PubAck
		ack, err = p.attempt(ctx, msg, opts...)
		switch {
		case err == nil:
			return ack, nil
		case lostRace(err) && p.asked():
			return p.settle(ctx, msg.Subject, err)
		case lostRace(err):
			return nil, fmt.Errorf("%w: %w", ErrConflict, err)
		case natslink.OverQuota(err): // not stored; the quota grows with time
		case !isOutage(err) && (p.asked() || ctx.Err() != nil):
			return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		case !isOutage(err):
			return nil, err
		}
		if maybeStored(err) {
			p.unanswered(start)
		}
		if late := !o.until.IsZero() && time.Now().After(o.until); late && p.asked() {
			return p.settle(ctx, msg.Subject, err)
		} else if late {
			return nil, fmt.Errorf("%w: no server answered in time: %w", ErrConflict, err)
		}
		if natslink.Pause(ctx, attempt) != nil {
			switch {
			case p.asked():
				return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
			case natslink.OverQuota(err):
				return nil, fmt.Errorf("%w: %w", natslink.ErrQuota, err)
			}
			return nil, fmt.Errorf("no server answers: %w", err)
		}
	}
}

// maybeStored reports whether the server may have stored a message despite err. Without responders, the message reached
// no stream.
func maybeStored(err error) bool { return isOutage(err) && !errors.Is(err, nats.ErrNoResponders) }

// orTimeout returns err, or a timeout if an earlier call made the attempt.
func orTimeout(err error) error {
	if err == nil {
		return nats.ErrTimeout
	}
	return err
}

// errRepeated is a conflict that follows an unanswered attempt. If the server has lost the message id, the conflict may
// be with that attempt.
var errRepeated = errors.New("an earlier attempt was not answered")

// settle finds out whether a message was stored if one attempt was not answered and the next one failed with a
// conflict. A standalone server checks the condition of a write before its id, so an attempt can conflict with the
// previous one. The server stores an id only once in the whole stream. settle therefore sends an empty message with the
// same id to a subject without a bin. If the server reports a duplicate, the message was stored. Otherwise it was not
// stored and can never be. This holds only within the duplicate window: afterwards the outcome is unknown.
func (p *publication) settle(ctx context.Context, subject string, conflict error) (*jetstream.PubAck, error) {
	parts := strings.SplitN(subject, ".", 3)
	probe := nats.NewMsg(parts[0] + "." + parts[1] + ".%") // not a valid escaped name
	probe.Header.Set(jetstream.MsgTTLHeader, probeTTL.String())
	for attempt, probed := 0, false; ; attempt++ {
		if p.over() {
			return nil, fmt.Errorf("%w: it was not confirmed within the duplicate window of %v: %w", ErrOutcomeUnknown, p.window, conflict)
		}
		ack, err := p.attempt(ctx, probe)
		switch {
		case err == nil && ack.Duplicate && probed: // may be a duplicate of the probe itself
			return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, conflict)
		case err == nil && ack.Duplicate:
			return ack, nil
		case err == nil:
			return nil, fmt.Errorf("%w: %w: %w", ErrConflict, errRepeated, conflict)
		case !isOutage(err) && !natslink.OverQuota(err):
			return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		}
		probed = probed || maybeStored(err)
		if natslink.Pause(ctx, attempt) != nil {
			return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		}
	}
}

package bins

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// TakeOptions configures Take.
type TakeOptions struct {
	// Wait makes Take wait for an item until its context ends. Otherwise the error for an empty bin is [ErrNotFound].
	Wait bool
	// Max is the maximum number of items to take, oldest first. 0 means all. A list that was put with [AsList] counts
	// as one.
	Max int
	// Damaged, if not nil, makes Take remove damaged items too. It is called for each of them after it was removed. Otherwise
	// a damaged item makes Take fail with [ErrCorrupt].
	Damaged func(sequence uint64, err error)
}

// Take returns and removes all items of a bin, or the oldest ones. Each item is delivered to at most one taker. Items
// that are appended while it reads may remain. Take returns when the items are removed for all readers. It deletes
// their messages and bodies in the background (see [Store.Drain]). Errors: [ErrNotFound]; [ErrTooLarge] for an item
// over this store's MaxItemBytes, and [ErrCorrupt], both without removing any item; [ErrOutcomeUnknown] if the server
// did not confirm whether the items were removed.
func (s *Store) Take(ctx context.Context, bin string, opts TakeOptions) (_ []Item, err error) {
	defer func() { err = wrap("take from", bin, err) }()
	if err := CheckName(bin); err != nil {
		return nil, err
	}
	if opts.Max < 0 {
		return nil, fmt.Errorf("negative TakeOptions.Max: %d", opts.Max)
	}
	items, err := s.takeNow(ctx, bin, opts)
	if !opts.Wait || !errors.Is(err, ErrNotFound) {
		return items, err
	}
	events, err := s.Listen(ctx, bin)
	if err != nil {
		return nil, err
	}
	defer events.Close()
	announced := false
	for attempt := 0; ; attempt++ {
		items, err := s.takeNow(ctx, bin, opts) // items from before Listen began cause no event
		if !errors.Is(err, ErrNotFound) {
			return items, err
		}
		if announced, err = awaitItems(ctx, events, announced, attempt); err != nil {
			return nil, err
		}
	}
}

// awaitItems waits until an event reports items. If an event reported items and the taker found none, awaitItems waits
// only briefly, because the replica that served the read may not have the change yet.
func awaitItems(ctx context.Context, events *Listener, announced bool, attempt int) (bool, error) {
	for {
		waiting, cancel := ctx, context.CancelFunc(func() {})
		if announced {
			waiting, cancel = context.WithTimeout(ctx, min(50*time.Millisecond<<min(attempt, 5), time.Second))
		}
		event, err := events.next(waiting)
		over := waiting.Err() != nil
		cancel()
		switch {
		case err == nil && event.Items > 0:
			return true, nil
		case err == nil:
			announced = false
		case over && ctx.Err() == nil:
			return announced, nil
		default:
			return false, err
		}
	}
}

func (s *Store) takeNow(ctx context.Context, bin string, opts TakeOptions) ([]Item, error) {
	missing := 0
	for {
		items, err := s.takeOnce(ctx, bin, opts, missing >= maxBodyGone)
		switch {
		case errors.Is(err, errOnlyDamaged):
			continue // the next items may be good
		case errors.Is(err, errBodyGone):
			if missing++; missing > maxBodyGone {
				return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
			}
			if err := natslink.Pause(ctx, 0); err != nil {
				return nil, err
			}
		case !errors.Is(err, ErrConflict):
			return items, err
		}
		// Another process took or deleted items, so some process has made progress.
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// errOnlyDamaged means that all taken items were damaged.
var errOnlyDamaged = errors.New("all items were damaged")

// takeOnce takes items. last reports that missing bodies count as damage, because they were missing in earlier attempts.
func (s *Store) takeOnce(ctx context.Context, bin string, opts TakeOptions, last bool) ([]Item, error) {
	begin := time.Now()
	c, err := s.content(ctx, bin, opts.Max)
	if err != nil {
		return nil, err
	}
	messages := c.messages
	if opts.Max > 0 && opts.Max < len(messages) {
		messages = messages[:opts.Max]
	}
	// The bodies are loaded before the claim: a taker that cannot read them removes nothing.
	type damage struct {
		sequence uint64
		err      error
	}
	var damaged []damage
	skip := func(m stored, err error) bool {
		if opts.Damaged == nil || !errors.Is(err, ErrCorrupt) && !(last && errors.Is(err, errBodyGone)) {
			return false
		}
		damaged = append(damaged, damage{m.item.Sequence, err})
		return true
	}
	items, err := s.loadAll(ctx, messages, skip)
	if err != nil {
		return nil, err
	}
	if time.Since(begin) > s.window/2 {
		if begin, err = s.recheck(ctx, bin, c); err != nil {
			return nil, err
		}
	}
	if err := s.claim(ctx, bin, opTake, messages, c, begin.Add(s.window)); err != nil {
		return nil, err
	}
	for _, d := range damaged {
		opts.Damaged(d.sequence, d.err)
	}
	if len(items) == 0 && len(damaged) > 0 {
		return nil, errOnlyDamaged
	}
	return items, nil
}

// recheck returns [ErrConflict] if another process took, deleted or replaced items of c since it was read. It returns a
// time before its own reading.
func (s *Store) recheck(ctx context.Context, bin string, c content) (time.Time, error) {
	begin := time.Now()
	now, err := s.content(ctx, bin, 1)
	if err != nil {
		return begin, err
	}
	if now.claim.item.Sequence != c.claim.item.Sequence || len(now.messages) == 0 || now.messages[0].item.Sequence != c.messages[0].item.Sequence {
		return begin, ErrConflict
	}
	return begin, nil
}

// claim removes the oldest items of a bin. It fails with [ErrConflict] if another claim was stored since c was read. It
// does not affect items that are appended meanwhile, so it works beside active writers. No attempt starts after until.
func (s *Store) claim(ctx context.Context, bin, op string, messages []stored, c content, until time.Time) error {
	upTo, before := messages[len(messages)-1].item.Sequence, c.claim.item.Sequence
	msg := nats.NewMsg(s.claimSubject(bin))
	msg.Header.Set(headerOp, op)
	msg.Header.Set(headerItems, strconv.Itoa(len(messages)))
	msg.Header.Set(headerUpTo, strconv.FormatUint(upTo, 10))
	msg.Header.Set(headerBefore, strconv.FormatUint(before, 10))
	msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := linger(ctx, requestTimeout)
	defer cancel()
	id := nuid.Next()
	ack, err := publish(ctx, s.js, s.stream, msg, writeOptions{id: id, expect: &before, until: until})
	sequence := uint64(0)
	switch {
	case errors.Is(err, errRepeated):
		if sequence, err = s.settleClaim(ctx, bin, id, messages[0].item.Sequence, err); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		sequence = ack.Sequence
	}
	replaced, err := s.replaced(ctx, bin, upTo)
	if err != nil {
		s.log.Debug("bins: could not verify a claim", "namespace", s.opts.Namespace, "bin", bin, "error", err)
	}
	done := stored{claim: true, op: op, item: Item{Sequence: sequence}, upTo: upTo, items: len(messages), before: before}
	s.background.start(func(ctx context.Context) { s.finishTake(ctx, bin, done, messages) })
	if replaced {
		return fmt.Errorf("%w: its items were replaced", ErrConflict)
	}
	return nil
}

// replaced reports whether a Put has replaced the items up to a sequence number. With several replicas, a reader may
// see items that were replaced before it began.
func (s *Store) replaced(ctx context.Context, bin string, upTo uint64) (bool, error) {
	if s.stream.CachedInfo().Config.Replicas < 2 {
		return false, nil
	}
	try, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	next, err := natslink.LeaderMessage(try, s.conn, "BINS_"+s.opts.Namespace, natslink.MessageQuery{Sequence: upTo + 1, NextBySubject: s.subject(bin)})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	return err == nil && bytes.Contains(next.Header, []byte("\r\n"+headerOp+": "+opPut+"\r\n")), err
}

// newestClaim returns the newest claim on a bin, or zero if there is none.
func (s *Store) newestClaim(ctx context.Context, bin string) (claim stored, err error) {
	err = natslink.Ask(ctx, func(ctx context.Context) error {
		msg, err := s.stream.GetLastMsgForSubject(ctx, s.claimSubject(bin))
		if err == nil {
			claim = parseClaim(msg.Header, msg.Sequence, msg.Time)
		}
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		return err
	})
	return claim, err
}

// linger returns a context that ends d after ctx. A sent claim needs its answer, which decides whether the caller has
// the items.
func linger(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel(context.Cause(ctx))
		case <-out.Done():
		}
	})
	return out, func() { stop(); cancel(nil) }
}

// settleClaim finds out whether a claim is stored after an unanswered attempt, if the server has no record of its id.
// The claim is stored if the newest claim has this id. It is not stored if the oldest item still exists. Otherwise the
// outcome is unknown: another claim may have replaced this one, or the server lost its record in a restart.
func (s *Store) settleClaim(ctx context.Context, bin, id string, oldest uint64, conflict error) (uint64, error) {
	c, err := s.content(ctx, bin, 1)
	switch {
	case err == nil && c.claim.id == id:
		return c.claim.item.Sequence, nil
	case err == nil && len(c.messages) > 0 && c.messages[0].item.Sequence <= oldest:
		return 0, conflict
	}
	return 0, fmt.Errorf("%w: a server did not answer, and the items are gone", ErrOutcomeUnknown)
}

// finishTake removes the messages and bodies of claimed items. Then, unless there is a newer claim, it replaces the
// claim by a message that expires. The message describes the claim for listeners that have not read it yet. finishTake
// returns the number of removed bodies.
func (s *Store) finishTake(ctx context.Context, bin string, claim stored, messages []stored) (removed int) {
	err := natslink.Ask(ctx, func(ctx context.Context) error {
		return s.stream.Purge(ctx, jetstream.WithPurgeSubject(s.subject(bin)), jetstream.WithPurgeSequence(claim.upTo+1))
	})
	if err == nil {
		msg := nats.NewMsg(s.claimSubject(bin))
		msg.Header.Set(headerOp, opSettled)
		msg.Header.Set(headerUpTo, strconv.FormatUint(claim.upTo, 10))
		msg.Header.Set(headerBefore, strconv.FormatUint(claim.item.Sequence, 10))
		msg.Header.Set(headerClaim, claim.op)
		msg.Header.Set(headerItems, strconv.Itoa(claim.items))
		msg.Header.Set(headerSince, strconv.FormatUint(claim.before, 10))
		msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
		msg.Header.Set(jetstream.MsgTTLHeader, settledTTL.String())
		_, err = publish(ctx, s.js, s.stream, msg, writeOptions{id: nuid.Next(), expect: &claim.item.Sequence})
	}
	if err != nil && !errors.Is(err, ErrConflict) {
		s.log.Debug("bins: taken items remain until the next read or sweep", "namespace", s.opts.Namespace, "bin", bin, "error", err)
	}
	names := make([]string, 0, len(messages))
	for _, m := range messages {
		if m.object != "" {
			names = append(names, m.object)
		}
	}
	return s.removeBodies(ctx, names)
}

// finishTakes finishes the claims of killed takers. It returns the number of removed bodies.
func (s *Store) finishTakes(ctx context.Context, grace time.Duration) (removed int, err error) {
	now, err := s.clock.Now(ctx)
	if err != nil {
		return 0, err
	}
	bins := map[string]bool{}
	err = again(ctx, func() error {
		return s.scan(ctx, s.claimPrefix()+">", jetstream.ConsumerConfig{}, func(m jetstream.Msg, meta *jetstream.MsgMetadata) error {
			name, ok := s.binOf(m.Subject())
			if ok && m.Headers().Get(headerOp) != opSettled && now.Sub(meta.Timestamp) >= grace {
				bins[name] = true
			}
			return nil
		})
	})
	for bin := range bins {
		var c content
		if err == nil {
			c, err = s.contentOnce(ctx, bin, 0)
		}
		if err == nil && s.unfinished(ctx, c, grace) {
			removed += s.finishTake(ctx, bin, c.claim, c.gone)
		}
	}
	return removed, err
}

// Delete removes all items of a bin, including damaged ones. For an empty bin it returns nil and causes no event. Items
// that are appended while Delete reads may remain.
func (s *Store) Delete(ctx context.Context, bin string) (err error) {
	defer func() { err = wrap("delete", bin, err) }()
	if err := CheckName(bin); err != nil {
		return err
	}
	for {
		begin := time.Now()
		c, err := s.content(ctx, bin, 0)
		if err != nil || len(c.messages) == 0 {
			return err
		}
		err = s.claim(ctx, bin, opDelete, c.messages, c, begin.Add(s.window))
		if !errors.Is(err, ErrConflict) || ctx.Err() != nil {
			return err
		}
	}
}

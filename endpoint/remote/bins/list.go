package bins

import (
	"context"
	"math"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// emptyLives is how long the message that ends a bin may be there. The server removes it once a second after its time
// is over.
const emptyLives = tombstoneTTL + 2*time.Second

// List returns how many items each bin has whose name matches pattern, in which '*' stands for one part of a name and
// '>' at the end for one or more. ">" lists all bins. The counts of different bins may be those of different moments.
func (s *Store) List(ctx context.Context, pattern string) (_ map[string]int, err error) {
	defer func() { err = wrap("list", pattern, err) }()
	subject, err := escapePattern(pattern)
	if err != nil {
		return nil, err
	}
	return s.count(ctx, s.prefix()+subject)
}

// Count returns how many items a bin has: 0 for one that does not exist.
func (s *Store) Count(ctx context.Context, bin string) (_ int, err error) {
	defer func() { err = wrap("count", bin, err) }()
	if err := CheckName(bin); err != nil {
		return 0, err
	}
	counts, err := s.count(ctx, s.subject(bin))
	return counts[bin], err
}

// count takes the server's totals and subtracts the messages that are no items, which are among the newest: they live
// for seconds. In a namespace in which somebody has taken some items of a bin it looks at all messages instead.
func (s *Store) count(ctx context.Context, subject string) (counts map[string]int, err error) {
	err = again(ctx, func() error {
		counts, err = s.countOnce(ctx, subject)
		return err
	})
	return counts, err
}

func (s *Store) countOnce(ctx context.Context, subject string) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*requestTimeout)
	defer cancel()
	info, err := s.info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return nil, err
	}
	if takesSome(info) {
		return s.countItems(ctx, subject, info.State.LastSeq)
	}
	counts := map[string]int{}
	for subject, n := range info.State.Subjects {
		if name, ok := s.binOf(subject); ok {
			counts[name] = int(n)
		}
	}
	since := info.TimeStamp.Add(-emptyLives)
	if len(counts) == 0 || info.State.LastTime.Before(since) {
		return counts, nil
	}
	config := jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since}
	err = s.scan(ctx, subject, config, func(m jetstream.Msg, meta *jetstream.MsgMetadata) error {
		if meta.Sequence.Stream > info.State.LastSeq {
			return nil
		}
		name, ok := s.binOf(m.Subject())
		if op := m.Headers().Get(headerOp); !ok || op != opTake && op != opDelete {
			return nil
		}
		if counts[name]--; counts[name] <= 0 {
			delete(counts, name)
		}
		return nil
	})
	return counts, err
}

// countItems counts the items of bins by the headers of all messages up to a sequence number.
func (s *Store) countItems(ctx context.Context, subject string, last uint64) (map[string]int, error) {
	bins := map[string]*content{}
	err := s.scan(ctx, subject, jetstream.ConsumerConfig{}, func(m jetstream.Msg, meta *jetstream.MsgMetadata) error {
		if meta.Sequence.Stream > last {
			return nil
		}
		name, ok := s.binOf(m.Subject())
		if !ok {
			return nil
		}
		one, err := parseStored(m.Headers(), nil, meta.Sequence.Stream, meta.Timestamp, math.MaxInt64)
		if err != nil {
			return err
		}
		if bins[name] == nil {
			bins[name] = &content{}
		}
		bins[name].see(one)
		return nil
	})
	counts := make(map[string]int, len(bins))
	for name, c := range bins {
		if len(c.messages) > 0 {
			counts[name] = len(c.messages)
		}
	}
	return counts, err
}

package bins

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// List returns the number of items of each bin whose name matches pattern. In a pattern, '*' matches one part of a
// name, and a trailing '>' matches one or more parts. ">" matches all bins. The counts are not an atomic snapshot
// across bins.
func (s *Store) List(ctx context.Context, pattern string) (_ map[string]int, err error) {
	defer func() { err = wrap("list", pattern, err) }()
	subject, err := escapePattern(pattern)
	if err != nil {
		return nil, err
	}
	return s.count(ctx, subject)
}

// Count returns the number of items of a bin: 0 if it does not exist.
func (s *Store) Count(ctx context.Context, bin string) (_ int, err error) {
	defer func() { err = wrap("count", bin, err) }()
	if err := CheckName(bin); err != nil {
		return 0, err
	}
	counts, err := s.count(ctx, escape(bin))
	return counts[bin], err
}

// count uses the server's totals by subject. If taken items may still be in the stream, it reads the headers of all
// messages instead. pattern must be escaped.
func (s *Store) count(ctx context.Context, pattern string) (counts map[string]int, err error) {
	err = again(ctx, func() error {
		counts, err = s.countOnce(ctx, pattern)
		return err
	})
	return counts, err
}

func (s *Store) countOnce(ctx context.Context, pattern string) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*requestTimeout)
	defer cancel()
	info, err := s.info(ctx, jetstream.WithSubjectFilter(s.bothPrefix()+pattern))
	if err != nil {
		return nil, err
	}
	counts, claimed := map[string]int{}, false
	for subject, n := range info.State.Subjects {
		name, ok := s.binOf(subject)
		switch {
		case ok && strings.HasPrefix(subject, claimRoot):
			claimed = true
		case ok:
			counts[name] = int(n)
		}
	}
	if !claimed {
		return counts, nil
	}
	// The totals are right for bins whose claims were settled earlier, because their taken items are removed.
	settled := true
	err = s.scan(ctx, s.claimPrefix()+pattern, jetstream.ConsumerConfig{}, func(m jetstream.Msg, meta *jetstream.MsgMetadata) error {
		if m.Headers().Get(headerOp) != opSettled || meta.Sequence.Stream > info.State.LastSeq {
			settled = false
		}
		return nil
	})
	if err != nil || settled {
		return counts, err
	}
	return s.countItems(ctx, pattern)
}

// countItems counts the items of bins from the headers of all messages.
func (s *Store) countItems(ctx context.Context, pattern string) (map[string]int, error) {
	bins := map[string]*content{}
	err := s.scan(ctx, s.bothPrefix()+pattern, jetstream.ConsumerConfig{}, func(m jetstream.Msg, meta *jetstream.MsgMetadata) error {
		name, ok := s.binOf(m.Subject())
		if !ok {
			return nil
		}
		if bins[name] == nil {
			bins[name] = &content{}
		}
		bins[name].apply(parseMessage(m.Subject(), m.Headers(), nil, meta.Sequence.Stream, meta.Timestamp))
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

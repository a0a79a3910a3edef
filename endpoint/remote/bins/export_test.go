package bins

import "github.com/nats-io/nats.go/jetstream"

// StreamOf is where the bins of a store lie.
func StreamOf(s *Store) jetstream.Stream { return s.stream }

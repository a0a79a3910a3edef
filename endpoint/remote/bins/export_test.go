package bins

import "github.com/nats-io/nats.go/jetstream"

// StreamOf returns the stream of a store.
func StreamOf(s *Store) jetstream.Stream { return s.stream }

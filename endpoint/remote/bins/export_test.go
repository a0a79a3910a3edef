package bins

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// StreamOf returns the stream of a store.
func StreamOf(s *Store) jetstream.Stream { return s.stream }

// SetClaimWindow sets the time between reading a bin and the last attempt to store a claim on it.
func SetClaimWindow(s *Store, d time.Duration) { s.window = d }

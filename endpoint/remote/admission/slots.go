package admission

import (
	"context"
	"fmt"
	"sync/atomic"
)

// Slots limits the number of operations that run at once and the number that wait to run. Its methods are safe for
// concurrent use.
type Slots struct {
	running chan struct{}
	queue   int64 // maximum number of waiting operations; negative for any
	waiting atomic.Int64
}

// NewSlots returns slots for a number of running and of waiting operations. A negative number of waiting operations
// means no limit.
func NewSlots(running, waiting int) *Slots {
	return &Slots{running: make(chan struct{}, running), queue: int64(waiting)}
}

// Enter waits for a slot. It returns ErrLimit if too many operations wait already, and the cause of ctx if ctx ends
// first. The caller calls Leave after success.
func (s *Slots) Enter(ctx context.Context) error {
	select {
	case s.running <- struct{}{}:
		return nil
	default:
	}
	defer s.waiting.Add(-1)
	if n := s.waiting.Add(1); s.queue >= 0 && n > s.queue {
		return fmt.Errorf("%w: limits of %d running and %d waiting requests", ErrLimit, cap(s.running), s.queue)
	}
	select {
	case s.running <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Leave frees a slot.
func (s *Slots) Leave() { <-s.running }

// Running returns the number of operations that have a slot.
func (s *Slots) Running() int { return len(s.running) }

// Waiting returns the number of operations that wait for a slot.
func (s *Slots) Waiting() int { return int(s.waiting.Load()) }

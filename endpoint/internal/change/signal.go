// Package change notifies waiters of changes of a state.
package change

// Signal notifies waiters of the next change of a state. It implements Changed methods. The lock of the state guards
// it. The zero value is ready to use.
type Signal struct {
	next  chan struct{} // closed at the next change; nil without waiters
	ended bool
}

// Channel returns a channel that is closed at the next change, or already closed after End.
func (s *Signal) Channel() <-chan struct{} {
	if s.next == nil {
		s.next = make(chan struct{})
		if s.ended {
			close(s.next)
		}
	}
	return s.next
}

// Notify wakes the waiters.
func (s *Signal) Notify() {
	if s.next != nil && !s.ended {
		close(s.next)
		s.next = nil
	}
}

// End wakes the waiters and makes Channel return a closed channel from now on.
func (s *Signal) End() {
	s.Notify()
	s.ended = true
}

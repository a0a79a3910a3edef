// Package change tells those that wait for it of the next change of a state.
package change

// Signal wakes those that wait for the next change of a state: what Changed methods return. The lock of the state
// guards it. The zero value is ready.
type Signal struct {
	next  chan struct{} // closed at the next change; nil while nobody waits for it
	ended bool
}

// Channel is closed at the next change, and at once where there will be none.
func (s *Signal) Channel() <-chan struct{} {
	if s.next == nil {
		s.next = make(chan struct{})
		if s.ended {
			close(s.next)
		}
	}
	return s.next
}

// Notify tells of a change.
func (s *Signal) Notify() {
	if s.next != nil && !s.ended {
		close(s.next)
		s.next = nil
	}
}

// End tells of the last change.
func (s *Signal) End() {
	s.Notify()
	s.ended = true
}

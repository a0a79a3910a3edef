package endpoint

// signal wakes those that wait for the next change of a state: what Changed methods return. The lock of the state
// guards it. The zero value is ready.
type signal struct {
	next  chan struct{} // closed at the next change; nil while nobody waits for it
	ended bool
}

// channel is closed at the next change, and at once where there will be none.
func (s *signal) channel() <-chan struct{} {
	if s.next == nil {
		s.next = make(chan struct{})
		if s.ended {
			close(s.next)
		}
	}
	return s.next
}

// change tells of a change.
func (s *signal) change() {
	if s.next != nil && !s.ended {
		close(s.next)
		s.next = nil
	}
}

// end tells of the last change.
func (s *signal) end() {
	s.change()
	s.ended = true
}

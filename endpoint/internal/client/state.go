package client

import "time"

// State describes the connection of a client to its owner. The zero State is idle: not connected, and no connection
// needed.
type State struct {
	Connecting bool // dialing, or pausing before the next attempt
	Connected  bool // the owner has answered the handshake
	Closed     bool // the client was closed
}

// Dials counts the results of a client's attempts to connect.
type Dials struct {
	Connections uint64    // successful attempts
	Failures    uint64    // failed attempts
	Since       time.Time // time of the last successful attempt
	Err         error     // of the last failure
}

func (d *Dials) succeeded() {
	d.Connections++
	d.Since = time.Now()
}

func (d *Dials) failed(err error) {
	d.Failures++
	d.Err = err
}

// Changed returns a channel that is closed when the state next changes; after Close it is closed.
func (c *Connector) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed.Channel()
}

// Standing returns the current state of the connection, the owner's id and the dial counts.
func (c *Connector) Standing() (state State, server string, d Dials) {
	c.mu.Lock()
	defer c.mu.Unlock()
	state = c.stateLocked()
	if state.Connected {
		server = c.conn.Server.Server
	}
	return state, server, c.dials
}

// noteLocked notifies waiters of Changed if the state has changed.
func (c *Connector) noteLocked() {
	if state := c.stateLocked(); state != c.notified {
		c.notified = state
		c.changed.Notify()
	}
}

func (c *Connector) stateLocked() State {
	switch {
	case c.closed:
		return State{Closed: true}
	case c.liveLocked():
		return State{Connected: true}
	case c.attempt != nil || c.conn != nil: // a connection that has ended is replaced at once: report connecting
		return State{Connecting: true}
	}
	return State{}
}

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

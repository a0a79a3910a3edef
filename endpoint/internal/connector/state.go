package connector

import "time"

// State is how a client stands to its owner.
type State uint8

const (
	// StateIdle is a client without a connection that nobody needs one of.
	StateIdle State = iota
	// StateConnecting is a client that dials, or pauses before it does so again.
	StateConnecting
	// StateConnected is a client whose owner has answered.
	StateConnected
	// StateClosed is a client that was closed.
	StateClosed
)

// Dials are what came of a client's attempts to connect.
type Dials struct {
	Connections uint64    // that were made
	Failures    uint64    // attempts that came to nothing
	Since       time.Time // when the last connection was made
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

// Standing describes the connection at this moment; server is the id of the owner.
func (c *Connector) Standing() (state State, server string, d Dials) {
	c.mu.Lock()
	defer c.mu.Unlock()
	state = c.stateLocked()
	if state == StateConnected {
		server = c.link.Server.Server
	}
	return state, server, c.dials
}

// noteLocked tells of the state, if it is another than before.
func (c *Connector) noteLocked() {
	if state := c.stateLocked(); state != c.notified {
		c.notified = state
		c.changed.Notify()
	}
}

func (c *Connector) stateLocked() State {
	switch {
	case c.closed:
		return StateClosed
	case c.link != nil && c.link.Reason() == nil:
		return StateConnected
	case c.attempt != nil || c.link != nil: // a connection that is over is given up, and the next one begun, at once
		return StateConnecting
	}
	return StateIdle
}

package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
)

// ClientState is how a client stands to its owner.
//
//	StateIdle ──> StateConnecting <──> StateConnected
//	   │  ^             │    │                │  │
//	   │  └─────────────┼────┼────────────────┘  │
//	   └────────────────┴─ StateClosed <─────────┘
//
// A connection that is lost is dialled again where a handle, a watcher, a reference or a request needs it; else the
// client is idle until one does.
type ClientState uint8

const (
	// StateIdle is a client without a connection that nobody needs one of.
	StateIdle = ClientState(connector.StateIdle)
	// StateConnecting is a client that dials, or pauses before it does so again.
	StateConnecting = ClientState(connector.StateConnecting)
	// StateConnected is a client whose owner has answered.
	StateConnected = ClientState(connector.StateConnected)
	// StateClosed is a client that was closed.
	StateClosed = ClientState(connector.StateClosed)
)

// String is the state in one word.
func (s ClientState) String() string {
	switch s {
	case StateIdle:
		return "idle"
	case StateConnecting:
		return "connecting"
	case StateConnected:
		return "connected"
	case StateClosed:
		return "closed"
	}
	return fmt.Sprintf("ClientState(%d)", uint8(s))
}

// MarshalText is the state in one word.
func (s ClientState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes. The error is [ErrInvalid].
func (s *ClientState) UnmarshalText(text []byte) (err error) {
	*s, err = parseWord(text, StateIdle, StateConnecting, StateConnected, StateClosed)
	return err
}

// State is how the client stands to its owner at this moment.
func (c *Client) State() ClientState {
	state, _, _ := c.conn.Standing()
	return ClientState(state)
}

// Changed returns a channel that is closed when State next changes; after Close it is closed. Ask for the channel first
// and for the state afterwards: then no change goes unseen.
func (c *Client) Changed() <-chan struct{} { return c.conn.Changed() }

// Connect waits until the client is connected, or ctx ends. Errors are those of [Dial].
func (c *Client) Connect(ctx context.Context) error {
	_, err := c.conn.Connected(ctx)
	return err
}

package endpoint

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// ClientState is the state of a client's connection.
//
//	StateIdle ──> StateConnecting <──> StateConnected
//	   │  ^             │    │                │  │
//	   │  └─────────────┼────┼────────────────┘  │
//	   └────────────────┴─ StateClosed <─────────┘
//
// After a lost connection, the client dials again if a handle, watcher, reference or request needs it. Otherwise it is
// idle until one does.
type ClientState uint8

const (
	// StateIdle means that there is no connection and no need for one.
	StateIdle ClientState = iota
	// StateConnecting means that the client dials or waits before it dials again.
	StateConnecting
	// StateConnected means that the owner has answered.
	StateConnected
	// StateClosed means that the client was closed.
	StateClosed
)

// String returns the state as one word.
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

// MarshalText returns the state as one word.
func (s ClientState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the output of MarshalText. It fails with [ErrInvalid].
func (s *ClientState) UnmarshalText(text []byte) (err error) {
	*s, err = parseWord(text, StateIdle, StateConnecting, StateConnected, StateClosed)
	return err
}

// State returns the state of the client's connection.
func (c *Client) State() ClientState {
	state, _, _ := c.conn.Standing()
	return clientState(state)
}

func clientState(s client.State) ClientState {
	switch {
	case s.Closed:
		return StateClosed
	case s.Connected:
		return StateConnected
	case s.Connecting:
		return StateConnecting
	}
	return StateIdle
}

// Changed returns a channel that is closed at the next change of State, or at once if the client is closed. Get the
// channel before the state to miss no change.
func (c *Client) Changed() <-chan struct{} { return c.conn.Changed() }

// Connect waits until the client is connected or ctx ends. Its errors are those of [Dial].
func (c *Client) Connect(ctx context.Context) error {
	_, err := c.conn.Connected(ctx)
	return err
}

// word is a state whose text is one word.
type word interface {
	comparable
	fmt.Stringer
}

// parseWord returns the one of all states whose text is text.
func parseWord[T word](text []byte, all ...T) (T, error) {
	for _, state := range all {
		if state.String() == string(text) {
			return state, nil
		}
	}
	var none T
	return none, fmt.Errorf("%w: %T: there is no %s", ErrInvalid, none, status.Shown(string(text)))
}

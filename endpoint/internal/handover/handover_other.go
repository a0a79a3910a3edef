//go:build !linux

package handover

import (
	"context"
	"errors"
	"os"
	"os/exec"
)

// State contains the socket and the versions that an owner hands to its successor.
type State struct {
	// Catalog is the id of the versions.
	Catalog string
	// Bound reports whether the owner created the socket file.
	Bound bool
	// Listener is the listening socket. Lock is nil if a service manager passed the socket.
	Listener, Lock *os.File
	// Files are a journal and memory, as in a store.
	Files map[string]*os.File
}

// Close does nothing.
func (*State) Close() {}

// Successor is not supported on this system.
type Successor struct{}

// Start returns [errors.ErrUnsupported].
func Start(*exec.Cmd, string) (*Successor, error) { return nil, errors.ErrUnsupported }

// PID returns 0.
func (*Successor) PID() int { return 0 }

// Await returns [errors.ErrUnsupported].
func (*Successor) Await(context.Context, bool) error { return errors.ErrUnsupported }

// Send returns [errors.ErrUnsupported].
func (*Successor) Send(*State) error { return errors.ErrUnsupported }

// Done returns [errors.ErrUnsupported].
func (*Successor) Done() error { return errors.ErrUnsupported }

// Close does nothing.
func (*Successor) Close() {}

// Abort does nothing.
func (*Successor) Abort() {}

// Predecessor is not supported on this system.
type Predecessor struct {
	// Socket is empty.
	Socket string
}

// Inherited returns nil.
func Inherited() *Predecessor { return nil }

// ErrPredecessorGone means that the owner ended before it handed anything over.
var ErrPredecessorGone = errors.New("the owner that started this process has ended")

// Take returns [errors.ErrUnsupported].
func (*Predecessor) Take() (*State, error) { return nil, errors.ErrUnsupported }

// Serve does nothing.
func (*Predecessor) Serve() {}

// Close does nothing.
func (*Predecessor) Close() {}

// Environment returns the environment of this process.
func Environment() []string { return os.Environ() }

// Ended returns nil: there are no successors.
func (s *Successor) Ended() *os.ProcessState { return nil }

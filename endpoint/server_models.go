package endpoint

import (
	"context"
	"fmt"
)

// Models attaches versions of models and follows them. It is implemented by [Client] and by [Server]: a function of the
// owner uses the weights that the owner shares. [Follow] accepts it.
type Models interface {
	// Acquire attaches a version. See [Client.Acquire].
	Acquire(ctx context.Context, name string, opts AcquireOptions) (*Handle, error)
	// Watch reports changes of names. See [Client.Watch].
	Watch(ctx context.Context, names ...string) (*Watcher, error)
	// models returns the client that implements the methods; nil for a nil client or server.
	models() *Client
}

var (
	_ Models = (*Client)(nil)
	_ Models = (*Server)(nil)
)

func (c *Client) models() *Client { return c }

func (s *Server) models() *Client {
	if s == nil {
		return nil
	}
	return s.own
}

// clientOf returns the client of m. It returns [ErrInvalid] if m is nil, also as a nil client or server in the interface.
func clientOf(m Models) (*Client, error) {
	if m == nil {
		return nil, fmt.Errorf("%w: the client is nil", ErrInvalid)
	}
	if c := m.models(); c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("%w: the client or server is nil", ErrInvalid)
}

// Acquire attaches a version that this server owns, as [Client.Acquire] does in other processes: with a lease that keeps the
// version, and without a second mapping. It works before Serve. The caller closes the handle. The memory of a handle stays
// valid after the server was closed.
func (s *Server) Acquire(ctx context.Context, name string, opts AcquireOptions) (*Handle, error) {
	return s.own.Acquire(ctx, name, opts)
}

// Watch reports changes of this server's names, as [Client.Watch] does in other processes. It works before Serve. The caller
// closes the watcher.
func (s *Server) Watch(ctx context.Context, names ...string) (*Watcher, error) {
	return s.own.Watch(ctx, names...)
}

// Follow keeps the newest version of a name of this server attached, for functions that use it: see [Client.Follow], and
// [Follow] for a prepared value. It works before Serve, and waits for the first version unless [FollowOptions.NoWait] is
// set. The caller closes the follower.
func (s *Server) Follow(ctx context.Context, name string, opts FollowOptions) (*Follower[ModelVersion], error) {
	return s.own.Follow(ctx, name, opts)
}

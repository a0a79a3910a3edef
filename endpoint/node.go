package endpoint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// Node is a process in its role: as a server or alone it runs functions, as a client it has them run by an owner. What
// is shared through it ([Share]) is called alike in all three, with the same types, checks, cache and errors; tensors
// of a result are views of the function's memory where it ran in this process, and mapped from the owner's where not.
//
// A node in the role of a server calls its functions over a connection within the process. A [Client] that dials a
// server of its own process has such a connection too, and a session there like any other; both are lent the server's
// memory.
type Node struct {
	caller
	mode     Mode
	auto     bool
	base     string // empty where the program has named the socket
	socket   string
	index    int
	registry *Registry
	server   *Server // nil for a client
	client   *Client // nil for others

	once   sync.Once
	served chan struct{} // closed when serving has ended, and err is set
	err    error
}

// Mode is the role: local, server or client.
func (n *Node) Mode() Mode { return n.mode }

// Socket is the path of the socket that the node serves or calls; empty for a local one.
func (n *Node) Socket() string {
	if n.mode == ModeLocal {
		return ""
	}
	return n.socket
}

// Registry is what is shared through the node.
func (n *Node) Registry() *Registry { return n.registry }

// Server is the node's server, to publish models and the like; nil for a client. Borrowed. That of a local node serves
// nobody.
func (n *Node) Server() *Server { return n.server }

// Client is the node's client, to acquire models and the like; nil for others. Borrowed.
func (n *Node) Client() *Client { return n.client }

// Ready lets clients in, in the role of a server: what is registered before is there for the first of them. In other
// roles, and the second time, it does nothing.
func (n *Node) Ready() {
	if n.mode != ModeServer {
		return
	}
	n.once.Do(func() {
		go func() {
			defer close(n.served)
			if err := n.server.Serve(context.Background()); !errors.Is(err, status.ErrServerClosed) {
				n.err = err
			}
		}()
	})
}

// Serve is Ready, and in the role of a server waits until ctx ends or the node is closed: then it returns nil. Serving
// that ended for another reason is an error. In other roles it returns nil at once.
func (n *Node) Serve(ctx context.Context) error {
	n.Ready()
	if n.mode != ModeServer {
		return nil
	}
	select {
	case <-n.served:
		return n.err
	case <-ctx.Done():
		return nil
	}
}

// Shutdown ends the node as [Server.Shutdown] and [Client.Close] do.
func (n *Node) Shutdown(ctx context.Context) error {
	if n.client != nil {
		return n.client.Close()
	}
	return errors.Join(n.server.Shutdown(ctx), n.ended())
}

// Close ends the node as [Server.Close] and [Client.Close] do. A second Close is nil.
func (n *Node) Close() error {
	if n.client != nil {
		return n.client.Close()
	}
	return errors.Join(n.server.Close(), n.ended())
}

// ended waits until the node does not serve any more.
func (n *Node) ended() error {
	n.once.Do(func() { close(n.served) })
	if n.mode != ModeServer {
		return nil
	}
	<-n.served
	return n.err
}

// RuntimeInfo describes a node at one moment.
type RuntimeInfo struct {
	// Mode is its role, Auto tells that the environment decided on it.
	Mode Mode `json:"execution_mode"`
	Auto bool `json:"auto_mode"`
	// BasePath is what paths of sockets begin with here, as [SocketPath] makes them; empty where the program has named
	// the socket itself.
	BasePath string `json:"base_path,omitempty"`
	// Socket is the path that it serves or calls; empty for a local one. DeviceIndex is the number in it.
	Socket      string `json:"server_socket_path,omitempty"`
	DeviceIndex int    `json:"device_index"`
	// ServerRunning reports whether there is a server, ServerReady that it serves.
	ServerRunning bool `json:"server_running"`
	ServerReady   bool `json:"server_ready"`
	// Registered is how many endpoints are registered in this process.
	Registered int `json:"endpoint_count"`
	// CacheEntries is how many results are cached where the functions run.
	CacheEntries uint64 `json:"cache_entries"`
	// Server describes the server; nil for a client whose owner does not answer.
	Server *ServerInfo `json:"server_info,omitempty"`
}

// Info describes the node. As a client it asks the owner, once: one that is not there, or ends before it answers, is no
// error but an answer.
func (n *Node) Info(ctx context.Context) (RuntimeInfo, error) {
	info := RuntimeInfo{
		Mode: n.mode, Auto: n.auto, BasePath: n.base, Socket: n.Socket(), DeviceIndex: n.index, Registered: len(n.registry.list()),
	}
	server, err := n.ServerInfo(ctx)
	switch {
	case err == nil:
		info.Server, info.ServerRunning, info.ServerReady = &server, server.Running, server.Ready
		info.CacheEntries = server.Stats.CacheEntries
	case ctx.Err() != nil: // whatever came of asking then
		return info, fmt.Errorf("server info: %w", context.Cause(ctx))
	case !errors.Is(err, status.ErrUnavailable):
		return info, err
	}
	return info, nil
}

// Share registers fn under a name and returns what the program calls instead of it: a function of the same type, which
// runs fn in this process or has the owner run it, as the node's role says. As a client fn is registered all the same,
// so that what is wrong with it is wrong in every role. Errors are those of [Register].
func Share[In, Out any](n *Node, name string, fn func(ctx context.Context, in In) (Out, error), opts ...Option) (func(context.Context, In) (Out, error), error) {
	if err := Register(n.registry, name, fn, opts...); err != nil {
		return nil, fmt.Errorf("share: %w", err)
	}
	return Stub[In, Out](n, name), nil
}

// ShareStream is [Share] for a function whose results come one by one, as with [RegisterStream].
func ShareStream[In, Out any](n *Node, name string, fn func(ctx context.Context, in In) iter.Seq2[Out, error], opts ...Option) (func(context.Context, In) iter.Seq2[Out, error], error) {
	if err := RegisterStream(n.registry, name, fn, opts...); err != nil {
		return nil, fmt.Errorf("share: %w", err)
	}
	return func(ctx context.Context, in In) iter.Seq2[Out, error] { return Stream[Out](ctx, n, name, in) }, nil
}

var (
	_ Caller = (*Client)(nil)
	_ Caller = (*Server)(nil)
	_ Caller = (*Node)(nil)
)

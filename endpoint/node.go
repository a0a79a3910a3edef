package endpoint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// Node is a process in one role. A server or local node runs functions itself; a client calls an owner's functions.
// Functions shared through a node ([Share]) are called the same way in all roles, with the same types, checks, caching
// and errors. Tensors of a result are views of the function's memory if it ran in this process, and otherwise mapped
// from the owner.
//
// A server node calls its functions over a connection within the process. A [Client] that dials a server in its own
// process has such a connection and an ordinary session. Both borrow the server's memory.
type Node struct {
	*caller
	mode     Mode
	auto     bool
	base     string // empty if the program set the socket
	socket   string
	index    int
	registry *Registry
	server   *Server // nil for a client
	client   *Client // nil except for a client

	once   sync.Once
	served chan struct{} // closed when serving has ended and err is set
	err    error
}

// Mode returns the role: local, server or client.
func (n *Node) Mode() Mode { return n.mode }

// Socket returns the path of the socket that the node serves or dials, or "" for a local node.
func (n *Node) Socket() string {
	if n.mode == ModeLocal {
		return ""
	}
	return n.socket
}

// Registry returns the registry of the node's functions.
func (n *Node) Registry() *Registry { return n.registry }

// Server returns the node's server, for example to publish models, or nil for a client. It is borrowed. The server of a
// local node serves no clients.
func (n *Node) Server() *Server { return n.server }

// Client returns the node's client, for example to acquire models, or nil in other roles. It is borrowed.
func (n *Node) Client() *Client { return n.client }

// Ready starts to accept clients in the role of a server. Register endpoints before Ready so that the first client
// finds them. In other roles, and on further calls, it does nothing.
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

// Serve calls Ready and, in the role of a server, waits until ctx ends or the node is closed, and then returns nil. If
// serving ends for another reason, it returns an error. In other roles it returns nil at once.
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

// Shutdown shuts the node down as [Server.Shutdown] and [Client.Close] do.
func (n *Node) Shutdown(ctx context.Context) error {
	if n.client != nil {
		return n.client.Close()
	}
	return errors.Join(n.server.Shutdown(ctx), n.ended())
}

// Close closes the node as [Server.Close] and [Client.Close] do. A second Close returns nil.
func (n *Node) Close() error {
	if n.client != nil {
		return n.client.Close()
	}
	return errors.Join(n.server.Close(), n.ended())
}

// ended waits until serving has ended.
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
	// Mode is the node's role. Auto reports whether the environment selected it.
	Mode Mode `json:"execution_mode"`
	Auto bool `json:"auto_mode"`
	// BasePath is the prefix of socket paths, as in [SocketPath]; empty if the program set the socket.
	BasePath string `json:"base_path,omitempty"`
	// Socket is the path that the node serves or dials; empty for a local node. DeviceIndex is the index in it.
	Socket      string `json:"server_socket_path,omitempty"`
	DeviceIndex int    `json:"device_index"`
	// ServerRunning reports whether there is a server, and ServerReady whether it serves.
	ServerRunning bool `json:"server_running"`
	ServerReady   bool `json:"server_ready"`
	// Registered is the number of endpoints registered in this process.
	Registered int `json:"endpoint_count"`
	// CacheEntries is the number of cached results in the process that runs the functions.
	CacheEntries uint64 `json:"cache_entries"`
	// Server describes the server. It is nil for a client whose owner does not answer.
	Server *ServerInfo `json:"server_info,omitempty"`
}

// Info describes the node. A client sends one request to its owner. If the owner does not serve or exits before it
// answers, Info succeeds without a description of it.
func (n *Node) Info(ctx context.Context) (RuntimeInfo, error) {
	info := RuntimeInfo{
		Mode: n.mode, Auto: n.auto, BasePath: n.base, Socket: n.Socket(), DeviceIndex: n.index, Registered: len(n.registry.registered().List()),
	}
	server, err := n.ServerInfo(ctx)
	switch {
	case err == nil:
		info.Server, info.ServerRunning, info.ServerReady = &server, server.Running, server.Ready
		info.CacheEntries = server.Stats.CacheEntries
	case ctx.Err() != nil: // ctx takes precedence over the request's result
		return info, fmt.Errorf("server info: %w", context.Cause(ctx))
	case !errors.Is(err, status.ErrUnavailable):
		return info, err
	}
	return info, nil
}

// Share registers fn under a name and returns a function of the same type for the program to call. It runs fn in this
// process or at the owner, depending on the node's role. A client registers fn too, so that invalid functions and
// options fail in every role. Its errors are those of [Register].
func Share[In, Out any](n *Node, name string, fn func(ctx context.Context, in In) (Out, error), opts ...Option) (func(context.Context, In) (Out, error), error) {
	if err := Register(n.registry, name, fn, opts...); err != nil {
		return nil, fmt.Errorf("share: %w", err)
	}
	return Stub[In, Out](n, name), nil
}

// ShareStream is [Share] for a function that returns a stream of results, as in [RegisterStream].
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

// Package node makes one program an owner, a client or neither, as the environment or its options select. The program
// shares functions, which run in its own process or at the owner, and calls them the same way in every role. It is for
// programs written for the Python package shared-tensor; other programs use [endpoint.NewServer] and [endpoint.Dial].
package node

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Node is a process in one role. A server or local node runs functions itself; a client calls an owner's functions.
// Functions shared through a node ([Share]) are called the same way in all roles, with the same types, checks, caching
// and errors. Tensors of a result are views of the function's memory if it ran in this process, and otherwise mapped
// from the owner.
//
// A server node calls its functions over a connection within the process.
type Node struct {
	endpoint.Caller // the server or the client
	mode            Mode
	auto            bool
	base            string // empty if the program set the socket
	socket          string
	index           int
	registry        *endpoint.Registry
	server          *endpoint.Server // nil for a client
	client          *endpoint.Client // nil except for a client

	once   sync.Once
	stop   context.CancelFunc // ends serving; set by Ready
	served chan struct{}      // closed when serving has ended and err is set
	err    error              // of the server's Serve
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
func (n *Node) Registry() *endpoint.Registry { return n.registry }

// Server returns the node's server, for example to publish models, or nil for a client. It is borrowed. The server of a
// local node serves no clients.
func (n *Node) Server() *endpoint.Server { return n.server }

// Client returns the node's client, for example to acquire models, or nil in other roles. It is borrowed.
func (n *Node) Client() *endpoint.Client { return n.client }

// Ready starts to accept clients in the role of a server. Register endpoints before Ready so that the first client
// finds them. In other roles, and on further calls, it does nothing.
func (n *Node) Ready() {
	if n.mode != ModeServer {
		return
	}
	n.once.Do(func() {
		var ctx context.Context
		ctx, n.stop = context.WithCancel(context.Background())
		go func() {
			defer close(n.served)
			n.err = n.server.Serve(ctx)
		}()
	})
}

// Serve calls Ready and, in the role of a server, returns as [endpoint.Server.Serve] does: it shuts the server down when
// ctx ends. In other roles it returns nil at once.
func (n *Node) Serve(ctx context.Context) error {
	n.Ready()
	if n.mode != ModeServer {
		return nil
	}
	defer context.AfterFunc(ctx, n.stop)()
	<-n.served
	return n.err
}

// Shutdown shuts the node down as [endpoint.Server.Shutdown] and [endpoint.Client.Close] do.
func (n *Node) Shutdown(ctx context.Context) error {
	if n.client != nil {
		return n.client.Close()
	}
	return errors.Join(n.server.Shutdown(ctx), n.ended())
}

// Close closes the node as [endpoint.Server.Close] and [endpoint.Client.Close] do. A second Close returns nil.
func (n *Node) Close() error {
	if n.client != nil {
		return n.client.Close()
	}
	return errors.Join(n.server.Close(), n.ended())
}

// ended waits until serving has ended and returns its error, unless it ended because the server was closed.
func (n *Node) ended() error {
	n.once.Do(func() {
		n.stop, n.err = func() {}, endpoint.ErrServerClosed
		close(n.served)
	})
	if n.mode != ModeServer {
		return nil
	}
	if <-n.served; errors.Is(n.err, endpoint.ErrServerClosed) {
		return nil
	}
	return n.err
}

// RuntimeInfo describes a node at one moment.
type RuntimeInfo struct {
	// Mode is the node's role. Auto reports whether the environment selected it.
	Mode Mode `json:"execution_mode"`
	Auto bool `json:"auto_mode"`
	// BasePath is the prefix of socket paths, as in [endpoint.SocketPath]; empty if the program set the socket.
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
	Server *endpoint.ServerInfo `json:"server_info,omitempty"`
}

// Info describes the node. A client sends one request to its owner. If the owner does not serve or exits before it
// answers, Info succeeds without a description of it.
func (n *Node) Info(ctx context.Context) (RuntimeInfo, error) {
	info := RuntimeInfo{
		Mode: n.mode, Auto: n.auto, BasePath: n.base, Socket: n.Socket(), DeviceIndex: n.index, Registered: n.registry.Len(),
	}
	server, err := n.ServerInfo(ctx)
	switch {
	case err == nil:
		info.Server, info.ServerRunning, info.ServerReady = &server, server.Running, server.Ready
		info.CacheEntries = server.Stats.CacheEntries
	case ctx.Err() != nil: // ctx takes precedence over the request's result
		return info, fmt.Errorf("server info: %w", context.Cause(ctx))
	case !errors.Is(err, endpoint.ErrUnavailable):
		return info, err
	}
	return info, nil
}

// Share registers fn under a name and returns a function of the same type for the program to call. It runs fn in this
// process or at the owner, depending on the node's role. A client registers fn too, so that invalid functions and
// options fail in every role. Its errors are those of [endpoint.Register].
func Share[In, Out any](n *Node, name string, fn func(ctx context.Context, in In) (Out, error), opts ...endpoint.Option) (func(context.Context, In) (Out, error), error) {
	if err := endpoint.Register(n.registry, name, fn, opts...); err != nil {
		return nil, fmt.Errorf("share: %w", err)
	}
	return endpoint.Stub[In, Out](n, name), nil
}

// ShareStream is [Share] for a function that returns a stream of results, as in [endpoint.RegisterStream].
func ShareStream[In, Out any](n *Node, name string, fn func(ctx context.Context, in In) iter.Seq2[Out, error], opts ...endpoint.Option) (func(context.Context, In) iter.Seq2[Out, error], error) {
	if err := endpoint.RegisterStream(n.registry, name, fn, opts...); err != nil {
		return nil, fmt.Errorf("share: %w", err)
	}
	return func(ctx context.Context, in In) iter.Seq2[Out, error] { return endpoint.Stream[Out](ctx, n, name, in) }, nil
}

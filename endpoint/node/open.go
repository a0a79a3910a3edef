package node

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
)

// Options configures a [Node]. With the zero value, the environment determines the role and the socket, and there are
// no devices.
type Options struct {
	// Mode is the role. It takes precedence over the environment unless it is ModeAuto.
	Mode Mode
	// Socket is the path that the node serves or dials. If it is empty, it is the path of Server.Listener, or the result
	// of [endpoint.SocketPath] for BasePath and DeviceIndex. A local node has no socket.
	Socket string
	// BasePath and DeviceIndex determine the path of the socket. BasePath takes precedence over
	// SHARED_TENSOR_BASE_PATH. An index of 0 means the value of LOCAL_RANK, else RANK, else the index of the first
	// device. Set Socket to use index 0 regardless of the rank.
	BasePath    string
	DeviceIndex int
	// Devices are the devices of the server or the client. They are borrowed and must outlive the node.
	Devices []driver.Device
	// Registry holds the node's functions. Nil means a new registry.
	Registry *endpoint.Registry
	// Logger receives messages for operators. Nil means standard error at the level of SHARED_TENSOR_LOG_LEVEL: debug,
	// info, warning, error or critical. If that is not set, warnings and errors are logged to slog.Default().
	Logger *slog.Logger
	// Server holds the other options of a server or local node. Its Socket, Devices, Registry, Logger and Local are
	// replaced.
	Server endpoint.ServerOptions
	// Client holds the other options of a client node. Its Socket, Devices and Logger are replaced.
	Client endpoint.ClientOptions
}

// Open returns a node in the role that the options or the environment select. A server has bound its socket; clients
// wait until [Node.Ready], so endpoints can be registered first. A client is connected. The caller closes the node.
//
// Errors: [endpoint.ErrInUse] if a live owner has the server's socket, which is left unchanged; those of
// [endpoint.Dial] for a client; [endpoint.ErrConfiguration] if options or environment are invalid.
func Open(ctx context.Context, opts Options) (*Node, error) {
	mode, err := opts.Mode.resolve()
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	if opts.Registry == nil {
		opts.Registry = endpoint.NewRegistry()
	}
	n := &Node{mode: mode, auto: opts.Mode == ModeAuto, registry: opts.Registry, served: make(chan struct{})}
	if err := opts.environment(n); err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	if mode == ModeClient {
		err = n.openClient(ctx, &opts)
	} else {
		err = n.openServer(&opts)
	}
	if err != nil {
		return nil, fmt.Errorf("open as %s: %w", mode, err)
	}
	return n, nil
}

// environment sets options that the program left unset from the environment, and the node's socket.
func (o *Options) environment(n *Node) (err error) {
	if o.Logger == nil {
		if o.Logger, err = defaultLogger(); err != nil {
			return err
		}
	}
	if o.Socket == "" && o.Server.Listener != nil {
		o.Socket = o.Server.Listener.Addr().String()
	}
	n.index, n.socket = o.DeviceIndex, o.Socket
	if o.Socket != "" {
		return transport.CheckSocketPath(o.Socket)
	}
	if n.mode != ModeLocal {
		if n.index, err = deviceIndex(o.DeviceIndex, o.Devices); err != nil {
			return err
		}
	}
	n.base = cmp.Or(o.BasePath, transport.DefaultBase())
	n.socket, err = transport.SocketPath(o.BasePath, n.index)
	return err
}

// openServer opens a server, without a socket for a local node.
func (n *Node) openServer(o *Options) (err error) {
	opts := o.Server
	opts.Socket, opts.Devices, opts.Registry, opts.Logger = n.socket, o.Devices, o.Registry, o.Logger
	if n.mode == ModeLocal {
		opts.Local, opts.Socket, opts.Listener = true, "", nil
	}
	if n.server, err = endpoint.NewServer(opts); err != nil {
		return err
	}
	n.Caller = n.server
	return nil
}

// openClient dials the owner.
func (n *Node) openClient(ctx context.Context, o *Options) (err error) {
	opts := o.Client
	opts.Socket, opts.Devices, opts.Logger = n.socket, o.Devices, o.Logger
	if n.client, err = endpoint.Dial(ctx, opts); err != nil {
		return err
	}
	n.Caller = n.client
	return nil
}

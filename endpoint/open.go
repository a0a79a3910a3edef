package endpoint

import (
	"cmp"
	"context"
	"fmt"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
)

// Options configures a [Node]. With the zero value, the environment determines the role and the socket, and there are
// no devices.
type Options struct {
	// Mode is the role. It takes precedence over the environment unless it is ModeAuto.
	Mode Mode
	// ServerOptions configures the server of a server or local node. A client uses Socket, Devices, AllowUIDs,
	// Limits.Wire, Label, Logger and Interceptors, as in [ClientOptions].
	//
	// An empty Socket means the result of [SocketPath] for BasePath and DeviceIndex. A nil Registry means a new one.
	// Interceptors wrap calls, tasks and streams: at the server if functions run in this process, else at the client. A
	// nil Logger logs to standard error at the level of SHARED_TENSOR_LOG_LEVEL: debug, info, warning, error
	// or critical. If that is not set, warnings and errors are logged to slog.Default().
	ServerOptions
	// BasePath and DeviceIndex determine the path of the socket. BasePath takes precedence over
	// SHARED_TENSOR_BASE_PATH. An index of 0 means the value of LOCAL_RANK, else RANK, else the index of the first
	// device. Set Socket to use index 0 regardless of the rank.
	BasePath    string
	DeviceIndex int
	// Wait makes Open, in the role of a client, and all requests wait for an owner until their contexts end. See
	// [ClientOptions].
	Wait bool
	// OverSocket makes a client use the socket even if the server is in the same process. See [ClientOptions].
	OverSocket bool
}

// Open returns a node in the role that the options or the environment select. A server has bound its socket; clients
// wait until [Node.Ready], so endpoints can be registered first. A client is connected. The caller closes the node.
//
// Errors: [ErrInUse] if a live owner has the server's socket, which is left unchanged; those of [Dial] for a client;
// [ErrConfiguration] if options or environment are invalid.
func Open(ctx context.Context, opts Options) (*Node, error) {
	mode, err := opts.Mode.resolve()
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	if opts.Registry == nil {
		opts.Registry = NewRegistry()
	}
	if err := opts.environment(mode); err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	n := &Node{mode: mode, auto: opts.Mode == ModeAuto, registry: opts.Registry, index: opts.DeviceIndex, served: make(chan struct{})}
	if n.socket, err = opts.socket(); err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	if opts.Socket == "" {
		n.base = cmp.Or(opts.BasePath, transport.DefaultBase())
	}
	switch mode {
	case ModeLocal:
		err = n.openLocal(opts)
	case ModeServer:
		err = n.openServer(opts)
	default:
		err = n.openClient(ctx, opts)
	}
	if err != nil {
		return nil, fmt.Errorf("open as %s: %w", mode, err)
	}
	return n, nil
}

// environment sets options that the program left unset from the environment.
func (o *Options) environment(mode Mode) (err error) {
	if o.Socket == "" && mode != ModeLocal {
		if o.DeviceIndex, err = deviceIndex(o.DeviceIndex, o.Devices); err != nil {
			return err
		}
	}
	if o.Logger == nil {
		o.Logger, err = defaultLogger()
	}
	return err
}

// socket returns the path that the options determine.
func (o *Options) socket() (string, error) {
	if o.Socket == "" && o.Listener != nil {
		return o.Listener.Addr().String(), nil
	}
	if o.Socket != "" {
		return o.Socket, transport.CheckSocketPath(o.Socket)
	}
	return transport.SocketPath(o.BasePath, o.DeviceIndex)
}

func (n *Node) openLocal(opts Options) (err error) {
	opts.ServerOptions.Socket = ""
	if n.server, err = newOwner(opts.ServerOptions); err != nil {
		return err
	}
	n.caller = n.server.caller
	return nil
}

func (n *Node) openServer(opts Options) (err error) {
	opts.ServerOptions.Socket = n.socket
	if n.server, err = NewServer(opts.ServerOptions); err != nil {
		return err
	}
	n.caller = n.server.caller
	return nil
}

func (n *Node) openClient(ctx context.Context, opts Options) (err error) {
	n.client, err = Dial(ctx, ClientOptions{
		Socket: n.socket, OverSocket: opts.OverSocket, Devices: opts.Devices, Wait: opts.Wait, AllowUIDs: opts.AllowUIDs, Limits: opts.Limits.Wire,
		Label: opts.Label, Logger: opts.Logger, Interceptors: opts.Interceptors,
	})
	if err != nil {
		return err
	}
	n.caller = n.client.caller
	return nil
}

package endpoint

import (
	"cmp"
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/unixsock"
)

// Options say what a [Node] is. The zero value is a node whose role and socket the environment decides, without
// devices.
type Options struct {
	// Mode is the role. A mode that is set goes before the environment.
	Mode Mode
	// ServerOptions are those of the server, in the roles that have one. In the role of a client Socket, Devices,
	// AllowUIDs, Limits.Wire, Label, Logger and Interceptors are used, as [ClientOptions] has them.
	//
	// Socket may be empty for the path that [SocketPath] makes of BasePath and DeviceIndex, Registry may be nil for a new
	// one, and Interceptors stand in front of calls, tasks and streams: where the functions run in this process at that
	// side, in the role of a client at the caller's. A Logger of nil stands for lines on standard error from the level on
	// that [EnvLogLevel] says, and where that is not set for slog.Default(), of which warnings and errors are used only.
	ServerOptions
	// BasePath and DeviceIndex make the path of the socket. A base path that is set goes before [EnvBasePath]. An index
	// of 0 stands for [EnvLocalRank], else [EnvRank], else the index of the first device: socket 0 whatever the rank is
	// asked for with Socket.
	BasePath    string
	DeviceIndex int
	// Wait makes Open, in the role of a client, wait for an owner that is not there yet, until its context ends.
	Wait bool
	// OverSocket makes a client go over the socket to a server of its own process too, see [ClientOptions].
	OverSocket bool
}

// Open returns a node in the role that the options and the environment say. As a server it has bound its socket, and
// lets clients wait until [Node.Ready]: nobody finds it without the endpoints that are registered first. As a client it
// has connected. The caller closes the node.
//
// Errors: [ErrInUse] for a server where a live owner has the socket, which is left alone; those of [Dial] for a client;
// [ErrConfiguration] for options or an environment that make no sense.
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
		n.base = cmp.Or(opts.BasePath, unixsock.DefaultBase())
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

// environment fills in what the program has not said and the environment does.
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

// socket is the path that the options ask for.
func (o *Options) socket() (string, error) {
	if o.Socket == "" && o.Listener != nil {
		return o.Listener.Addr().String(), nil
	}
	if o.Socket != "" {
		return o.Socket, unixsock.CheckSocketPath(o.Socket)
	}
	return unixsock.SocketPath(o.BasePath, o.DeviceIndex)
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

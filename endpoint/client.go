package endpoint

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// ClientOptions configures a client.
type ClientOptions struct {
	// Socket is the path of the owner's socket. The default is SocketPath("", 0).
	Socket string
	// OverSocket makes the client use the socket even if the server is in the same process. It is for tests and
	// benchmarks of what other processes get.
	OverSocket bool
	// Devices are the devices on which memory can be imported. They are borrowed and must outlive the client and its
	// handles. A client without devices can query and watch but not acquire.
	Devices []driver.Device
	// Wait makes Dial and all requests wait for an owner until their contexts end. Without it Dial fails at once if no
	// owner serves, and so does a request whose context has no deadline; a request with a deadline waits until then.
	// [NewClient] sets it, and returns at once.
	Wait bool
	// AllowUIDs lists users, besides the client's own, that may run the owner.
	AllowUIDs []uint32
	// Limits limits frames and descriptors from the owner. Zero fields have defaults.
	Limits wire.Limits
	// Interceptors wrap the calls, tasks and streams made through the client. The first is the outermost.
	Interceptors []Interceptor
	// Label is a name for people, shown in the owner's reports. At most 64 bytes. The default is the program's name.
	Label string
	// Logger receives messages for operators. If nil, warnings and errors are logged to slog.Default().
	Logger *slog.Logger
}

// Client is one connection to an owner, on which any number of requests may be in flight. When the connection ends, the
// client dials again while it has handles, watchers, offers, references or requests that wait. If no owner serves, a
// request without a deadline fails at once with [ErrUnavailable], unless the client was made to wait
// ([ClientOptions].Wait). A request that did not run, or that changes nothing, is repeated on the next connection. Its methods
// are safe for concurrent use.
type Client struct {
	*caller
	opts ClientOptions
}

// Dial connects to an owner. Dial waits one second until a server of this process serves. Functions of the server use the
// methods of [Server] instead of a client. Errors: [ErrUnavailable] if no owner serves on the socket, [ErrPermission] if the owner is
// another user or refuses this one, [ErrProtocol] if it uses another protocol version, and the cause of ctx.
func Dial(ctx context.Context, opts ClientOptions) (*Client, error) {
	c, err := makeClient(opts)
	if err != nil {
		return nil, err
	}
	connect := c.conn.ConnectNow
	if opts.Wait {
		connect = c.conn.Connected
	}
	if _, err := connect(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// NewClient returns a client that dials in the background until it is first connected or closed, so the owner may start
// later. Requests wait for an owner until their contexts end ([ClientOptions].Wait). [Client.Connect] waits for the
// connection only; [Client.State] and [Client.Stats] describe it. NewClient fails only if an option is invalid.
func NewClient(opts ClientOptions) (*Client, error) {
	opts.Wait = true
	c, err := makeClient(opts)
	if err != nil {
		return nil, err
	}
	c.conn.DialEagerly()
	return c, nil
}

// makeClient validates the options and returns an unconnected client.
func makeClient(opts ClientOptions) (*Client, error) {
	if opts.Socket == "" {
		path, err := transport.SocketPath("", 0)
		if err != nil {
			return nil, err
		}
		opts.Socket = path
	}
	if err := transport.CheckSocketPath(opts.Socket); err != nil {
		return nil, err
	}
	devices, err := transfer.NewDevices(opts.Devices)
	if err != nil {
		return nil, err
	}
	if opts.Logger == nil {
		opts.Logger = quiet(slog.Default())
	}
	intercept, err := chain(opts.Interceptors)
	if err != nil {
		return nil, err
	}
	c := newClient(opts, devices, nil)
	c.intercept = intercept
	return c, nil
}

// newClient returns an unconnected client. dialSelf connects a server's own client to it; it is nil for other clients.
func newClient(opts ClientOptions, devices transfer.Devices, dialSelf func() (*transport.Pipe, message.Hello, error)) *Client {
	conn := client.New(client.Config{
		Socket: opts.Socket, OverSocket: opts.OverSocket, AllowUIDs: opts.AllowUIDs, Wait: opts.Wait, Limits: opts.Limits,
		Devices: devices, Hello: opts.hello(devices), DialSelf: dialSelf, Log: opts.Logger,
	})
	return &Client{caller: &caller{conn: conn, infoTimeout: defaultInfoTimeout}, opts: opts}
}

// hello returns the client's hello.
func (o *ClientOptions) hello(devices transfer.Devices) message.Hello {
	label := o.Label
	if label == "" {
		label = filepath.Base(os.Args[0])
	}
	return message.Hello{
		Version: Version(), PID: int32(os.Getpid()), Label: status.ShortLabel(label), Devices: devices.Describe(), Features: transport.Features(o.Limits),
	}
}

// serverClosed closes a server's own client. Its object references are gone.
func (c *Client) serverClosed() {
	c.conn.LoseObjects()
	c.Close()
}

// Close ends the connection, releases all leases and ends all watchers. The memory of handles stays mapped until they
// are closed. A second Close returns nil.
func (c *Client) Close() error {
	c.conn.Close()
	return nil
}

// Socket returns the path of the owner's socket.
func (c *Client) Socket() string { return c.opts.Socket }

// ServerID returns the id of the connected owner, or "" if there is no connection.
func (c *Client) ServerID() string {
	if l := c.conn.Current(); l != nil {
		return l.Server.Server
	}
	return ""
}

// quiet returns a logger that drops messages below warning.
func quiet(l *slog.Logger) *slog.Logger { return slog.New(atLeastWarn{l.Handler()}) }

type atLeastWarn struct{ slog.Handler }

func (h atLeastWarn) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.Handler.Enabled(ctx, level)
}

func (h atLeastWarn) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeastWarn{h.Handler.WithAttrs(attrs)}
}

func (h atLeastWarn) WithGroup(name string) slog.Handler {
	return atLeastWarn{h.Handler.WithGroup(name)}
}

package endpoint

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/calls"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/connector"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/inproc"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/lease"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/limits"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/reference"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/unixsock"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/watch"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/worker"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// ClientOptions says which owner a client talks to and where it can map memory.
type ClientOptions struct {
	// Socket is the owner's path; empty stands for SocketPath("", 0).
	Socket string
	// OverSocket makes the client go over the socket to a server of its own process too. It is meant for tests and
	// measurements of what other processes get.
	OverSocket bool
	// Devices are what memory can be imported on. Borrowed: they must outlive the client and its handles. Without any,
	// a client can ask and watch, but not acquire.
	Devices []driver.Device
	// Wait makes Dial wait for an owner that is not there yet, until its context ends. Otherwise it fails at once.
	// [NewClient] never waits.
	Wait bool
	// AllowUIDs are the users, beside the client's own, whose processes may be the owner.
	AllowUIDs []uint32
	// Limits bound frames and descriptors from the owner. Zero fields stand for the defaults.
	Limits wire.Limits
	// Interceptors stand in front of calls, tasks and streams that are made through the client, the first one
	// outermost.
	Interceptors []Interceptor
	// Label names this client in what the owner reports, for people. At most 64 bytes; empty stands for the program's
	// name.
	Label string
	// Logger gets what operators should know. Nil stands for slog.Default(), of which warnings and errors are used
	// only.
	Logger *slog.Logger
}

// Client is one connection to an owner, on which any number of requests may be in flight. When the owner goes away the
// client dials again by itself, as soon and as long as somebody needs it: a request that waits within its context, a
// handle, a watcher. Its methods are safe for concurrent use.
type Client struct {
	caller
	opts     ClientOptions
	conn     *connector.Connector
	leases   *lease.Leases
	watchers *watch.Watchers
	offers   *worker.Offers
	refs     *reference.Table
}

// Dial connects to an owner. Errors: [ErrUnavailable] when nobody serves on the socket, [ErrPermission] when the owner
// is another user or refuses this one, [ErrProtocol] when it speaks another version, the cause of ctx when that ends
// first.
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

// NewClient returns a client that dials in the background, until it is connected for the first time or closed: its
// owner need not be there yet. Requests wait for the connection within their contexts, with [Client.Connect] a program
// waits for it alone, and [Client.State] and [Client.Stats] say how it goes. Errors are those of options that make no
// sense.
func NewClient(opts ClientOptions) (*Client, error) {
	c, err := makeClient(opts)
	if err != nil {
		return nil, err
	}
	c.conn.DialEagerly()
	return c, nil
}

// makeClient checks the options of a client, which is not connected yet.
func makeClient(opts ClientOptions) (*Client, error) {
	if opts.Socket == "" {
		path, err := unixsock.SocketPath("", 0)
		if err != nil {
			return nil, err
		}
		opts.Socket = path
	}
	if err := unixsock.CheckSocketPath(opts.Socket); err != nil {
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
	c.to.intercept = intercept
	return c, nil
}

// newClient is a client that is not connected yet. dialSelf connects a server's own client to it; nil for others.
func newClient(opts ClientOptions, devices transfer.Devices, dialSelf func() (*inproc.Pipe, message.Hello, error)) *Client {
	conn := connector.New(connector.Config{
		Socket: opts.Socket, OverSocket: opts.OverSocket, AllowUIDs: opts.AllowUIDs, Limits: opts.Limits,
		Hello: func() message.Hello { return opts.hello(devices) }, DialSelf: dialSelf,
	})
	importer := transfer.Importer{Devices: devices, Socket: opts.Socket}
	c := &Client{
		opts: opts, conn: conn, leases: lease.New(conn, importer, opts.Logger), watchers: watch.New(conn),
		offers: worker.New(conn, importer, opts.Limits, opts.Logger), refs: reference.New(conn, opts.Logger),
	}
	conn.AddDependents(c.watchers, c.offers, c.leases, c.refs)
	c.to = &target{conn: conn, refs: c.refs, invoker: calls.New(conn, c.refs, importer), infoTimeout: defaultInfoTimeout}
	return c
}

// hello is the client's hello.
func (o *ClientOptions) hello(devices transfer.Devices) message.Hello {
	label := o.Label
	if label == "" {
		label = filepath.Base(os.Args[0])
	}
	return message.Hello{
		Version: Version(), PID: int32(os.Getpid()), Label: limits.ShortLabel(label), Devices: devices.Describe(), Features: features(o.Limits),
	}
}

// serverClosed ends a server's own client: the objects that it has references to are gone.
func (c *Client) serverClosed() {
	c.refs.LoseAll()
	c.Close()
}

// Close ends the connection, gives back all leases and ends all watchers. Memory of handles stays mapped until they are
// closed themselves. A second Close is nil.
func (c *Client) Close() error {
	c.conn.Close()
	return nil
}

// Socket is the path of the owner's socket.
func (c *Client) Socket() string { return c.opts.Socket }

// ServerID names the owner that the client is connected to; empty while it is not.
func (c *Client) ServerID() string {
	if l := c.conn.Current(); l != nil {
		return l.Server.Server
	}
	return ""
}

package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/sharedtensor/sharedtensor/endpoint"
	nodepkg "github.com/sharedtensor/sharedtensor/endpoint/node"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// roles holds a child's node, which it opens in the role of its options or its environment.
type roles struct {
	node   *nodepkg.Node
	log    lines
	twice  func(context.Context, scaleIn) (*tensor.Tensor, error)
	where  func(context.Context, struct{}) (int, error)
	burst  func(context.Context, struct{}) (int, error)
	nest   func(context.Context, nestIn) (int, error)
	itself *endpoint.Client // of the node's own socket
}

// nestIn is a tree of tasks.
type nestIn struct {
	Depth, Width int
	OverSocket   bool
}

// nodeOptions describe how a node is opened. Empty fields are those of the child's environment.
type nodeOptions struct {
	Mode, Socket, BasePath string
	Device                 int
}

// opened is the mode and socket of a node.
type opened struct{ Mode, Socket string }

// openNodeOp opens a node.
var openNodeOp = op("open node", func(w *worker, ctx context.Context, in nodeOptions) (out opened, err error) {
	r := &w.roles
	opts := nodepkg.Options{
		BasePath:    in.BasePath,
		DeviceIndex: in.Device,
		Socket:      in.Socket,
		Devices:     driversOf(w.dev),
		Logger:      slog.New(slog.NewTextHandler(&r.log, nil)),
		Server:      endpoint.ServerOptions{Tasks: endpoint.TaskOptions{Workers: 2}},
	}
	if in.Mode != "" {
		if opts.Mode, err = nodepkg.ParseMode(in.Mode); err != nil {
			return out, err
		}
	}
	if r.node, err = nodepkg.Open(ctx, opts); err != nil {
		return out, err
	}
	return opened{r.node.Mode().String(), r.node.Socket()}, nil
})

// openNode has a child open a node.
func (c *child) openNode(opts nodeOptions) opened {
	c.t.Helper()
	return openNodeOp.Must(c.Process, opts)
}

// closeNodeOp closes a node.
var closeNodeOp = op("close node", func(w *worker, _ context.Context, _ none) (none, error) {
	return none{}, w.roles.node.Close()
})

// closeNode closes the node of a child.
func (c *child) closeNode() {
	c.t.Helper()
	closeNodeOp.Must(c.Process, none{})
}

// shareOp makes the functions of the child's program those of its node.
var shareOp = op("share", func(w *worker, _ context.Context, _ none) (none, error) { return none{}, w.share() })

// share makes the functions of the child's program those of its node.
func (c *child) share() {
	c.t.Helper()
	shareOp.Must(c.Process, none{})
}

// readyOp makes a node ready.
var readyOp = op("ready", func(w *worker, ctx context.Context, _ none) (_ none, err error) {
	r := &w.roles
	r.node.Ready()
	if r.itself == nil && r.node.Mode() == nodepkg.ModeServer {
		r.itself, err = endpoint.Dial(ctx, endpoint.ClientOptions{OverSocket: true, Socket: r.node.Socket()})
	}
	return none{}, err
})

// ready makes a node serve what it shares.
func (c *child) ready() {
	c.t.Helper()
	readyOp.Must(c.Process, none{})
}

// readiness is how far a node is.
type readiness struct {
	Running, Ready bool
	Registered     int
}

// readinessOp returns the state of a node.
var readinessOp = op("readiness", func(w *worker, ctx context.Context, _ none) (readiness, error) {
	info, err := w.roles.node.Info(ctx)
	return readiness{info.ServerRunning, info.ServerReady, info.Registered}, err
})

// readiness returns the state of a child's node.
func (c *child) readiness() readiness {
	c.t.Helper()
	return readinessOp.Must(c.Process, none{})
}

// doubled is a result of the shared function "twice": its Go type, and its first value.
type doubled struct {
	Type  string
	Value float32
}

// twiceOp calls the shared function "twice" with a tensor of one value.
var twiceOp = op("twice", func(w *worker, ctx context.Context, value float32) (doubled, error) {
	x, err := filled(w.dev, 3, value)
	if err != nil {
		return doubled{}, err
	}
	defer x.Close()
	y, err := w.roles.twice(ctx, scaleIn{X: x, By: 2})
	if err != nil {
		return doubled{}, err
	}
	defer y.Close()
	list, err := tensor.Float32s(y)
	if err != nil {
		return doubled{}, err
	}
	return doubled{fmt.Sprintf("%T", y), list[0]}, nil
})

// twice has a child call the shared function "twice".
func (c *child) twice(value float32) doubled {
	c.t.Helper()
	return twiceOp.Must(c.Process, value)
}

// whereOp calls the shared function "where". Its result is the id of the process that ran it.
var whereOp = op("where", func(w *worker, ctx context.Context, _ none) (int32, error) {
	pid, err := w.roles.where(ctx, struct{}{})
	return int32(pid), err
})

// where returns the process that runs the shared functions of a child.
func (c *child) where() int32 {
	c.t.Helper()
	return whereOp.Must(c.Process, none{})
}

// burstOp calls the shared function "burst", which panics.
var burstOp = op("burst", func(w *worker, ctx context.Context, _ none) (none, error) {
	_, err := w.roles.burst(ctx, struct{}{})
	return none{}, err
})

// burstError is the error of the shared function that panics.
func (c *child) burstError() error {
	c.t.Helper()
	return failure(c, burstOp, none{})
}

// nestOp calls the shared function "nest". Its result is the size of the tree of tasks.
var nestOp = op("nest", func(w *worker, ctx context.Context, overSocket bool) (int, error) {
	return w.roles.nest(ctx, nestIn{Depth: 3, Width: 2, OverSocket: overSocket})
})

// logOp returns the log of the node.
var logOp = op("log", func(w *worker, _ context.Context, _ none) (string, error) { return w.roles.log.String(), nil })

// log returns the log of a child's node.
func (c *child) log() string {
	c.t.Helper()
	return logOp.Must(c.Process, none{})
}

// crowd is a number of clients of a socket.
type crowd struct {
	Socket  string
	Clients int
}

// dialManyOp connects clients at once, each of which pings and disconnects.
var dialManyOp = op("dial many", func(_ *worker, ctx context.Context, in crowd) (_ none, err error) {
	errs := make(chan error, in.Clients)
	for range in.Clients {
		go func() {
			c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: in.Socket})
			if err == nil {
				_, err = c.Ping(ctx)
				c.Close()
			}
			errs <- err
		}()
	}
	for range in.Clients {
		err = errors.Join(err, <-errs)
	}
	return none{}, err
})

// dialDefaultOp connects to the owner that the environment names. Its result is the socket.
var dialDefaultOp = op("dial default", func(w *worker, ctx context.Context, _ none) (socket string, err error) {
	if w.client, err = endpoint.Dial(ctx, endpoint.ClientOptions{}); err != nil {
		return "", err
	}
	return w.client.Socket(), nil
})

// dialDefault connects a child to the owner that its environment names, and returns the socket.
func (c *child) dialDefault() string {
	c.t.Helper()
	return dialDefaultOp.Must(c.Process, none{})
}

// dialDefaultError is the error of a connection to the owner that the environment names, which has to fail.
func (c *child) dialDefaultError() error {
	c.t.Helper()
	return failure(c, dialDefaultOp, none{})
}

// share makes the functions of the child's program those of its node.
func (w *worker) share() (err error) {
	r := &w.roles
	r.twice, err = nodepkg.Share(r.node, "twice", func(_ context.Context, in scaleIn) (*tensor.Tensor, error) {
		list, err := tensor.Float32s(in.X)
		if err != nil {
			return nil, err
		}
		return filled(w.dev, len(list), list[0]*in.By)
	})
	if err != nil {
		return err
	}
	r.where, err = nodepkg.Share(r.node, "where", func(context.Context, struct{}) (int, error) { return os.Getpid(), nil })
	if err != nil {
		return err
	}
	r.burst, err = nodepkg.Share(r.node, "burst", func(context.Context, struct{}) (int, error) { panic("no such luck") })
	if err != nil {
		return err
	}
	r.nest, err = nodepkg.Share(r.node, "nest", func(ctx context.Context, in nestIn) (int, error) {
		through := endpoint.Caller(r.node)
		if in.OverSocket {
			through = r.itself
		}
		sum := 1
		for i := range min(in.Depth, 1) * in.Width {
			n, err := endpoint.Call[int](ctx, through, "nest", nestIn{Depth: in.Depth - 1, Width: in.Width - i, OverSocket: in.OverSocket})
			if err != nil {
				return 0, err
			}
			sum += n
		}
		return sum, nil
	}, endpoint.AsTask())
	return err
}

package node_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	nodepkg "github.com/sharedtensor/sharedtensor/endpoint/node"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// nodeState is the state of a child with a node.
type nodeState struct {
	node   *nodepkg.Node
	log    fixture.Lines
	twice  func(context.Context, fixture.ScaleIn) (*tensor.Tensor, error)
	where  func(context.Context, struct{}) (int, error)
	burst  func(context.Context, struct{}) (int, error)
	nest   func(context.Context, nestIn) (int, error)
	itself *endpoint.Client // of the node's own socket
}

// thisNode is the state of this process.
var thisNode nodeState

// nestIn is a tree of tasks.
type nestIn struct {
	Depth, Width int
	OverSocket   bool
}

// nodeOptions describe how a node is opened. Empty fields are taken from the child's environment.
type nodeOptions struct {
	Mode, Socket, BasePath string
	Device                 int
}

// opened is the mode and socket of a node.
type opened struct{ Mode, Socket string }

// openNodeOp opens a node.
var openNodeOp = fixture.NewOp("open node", func(w *fixture.Worker, ctx context.Context, in nodeOptions) (out opened, err error) {
	r := &thisNode
	opts := nodepkg.Options{
		BasePath:    in.BasePath,
		DeviceIndex: in.Device,
		Socket:      in.Socket,
		Devices:     fixture.DriversOf(w.Dev),
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
func openNode(c *fixture.Child, opts nodeOptions) opened {
	c.T.Helper()
	return openNodeOp.Must(c.Process, opts)
}

// closeNodeOp closes a node.
var closeNodeOp = fixture.NewOp("close node", func(w *fixture.Worker, _ context.Context, _ fixture.None) (fixture.None, error) {
	return fixture.None{}, thisNode.node.Close()
})

// closeNode closes the node of a child.
func closeNode(c *fixture.Child) {
	c.T.Helper()
	closeNodeOp.Must(c.Process, fixture.None{})
}

// shareOp shares the functions of the child's program.
var shareOp = fixture.NewOp("share", func(w *fixture.Worker, _ context.Context, _ fixture.None) (fixture.None, error) {
	return fixture.None{}, shareOf(w)
})

// share shares the functions of the child's program.
func share(c *fixture.Child) {
	c.T.Helper()
	shareOp.Must(c.Process, fixture.None{})
}

// readyOp makes a node ready.
var readyOp = fixture.NewOp("ready", func(w *fixture.Worker, ctx context.Context, _ fixture.None) (_ fixture.None, err error) {
	r := &thisNode
	r.node.Ready()
	if r.itself == nil && r.node.Mode() == nodepkg.ModeServer {
		r.itself, err = endpoint.Dial(ctx, endpoint.ClientOptions{OverSocket: true, Socket: r.node.Socket()})
	}
	return fixture.None{}, err
})

// ready makes a node serve what it shares.
func ready(c *fixture.Child) {
	c.T.Helper()
	readyOp.Must(c.Process, fixture.None{})
}

// readiness is how far a node is.
type readiness struct {
	Running, Ready bool
	Registered     int
}

// readinessOp returns the state of a node.
var readinessOp = fixture.NewOp("readiness", func(w *fixture.Worker, ctx context.Context, _ fixture.None) (readiness, error) {
	info, err := thisNode.node.Info(ctx)
	return readiness{info.ServerRunning, info.ServerReady, info.Registered}, err
})

// readinessOf returns the state of a child's node.
func readinessOf(c *fixture.Child) readiness {
	c.T.Helper()
	return readinessOp.Must(c.Process, fixture.None{})
}

// doubled is a result of the shared function "twice": its Go type, and its first value.
type doubled struct {
	Type  string
	Value float32
}

// twiceOp calls the shared function "twice" with a tensor of one value.
var twiceOp = fixture.NewOp("twice", func(w *fixture.Worker, ctx context.Context, value float32) (doubled, error) {
	x, err := fixture.Filled(w.Dev, 3, value)
	if err != nil {
		return doubled{}, err
	}
	defer x.Close()
	y, err := thisNode.twice(ctx, fixture.ScaleIn{X: x, By: 2})
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
func twice(c *fixture.Child, value float32) doubled {
	c.T.Helper()
	return twiceOp.Must(c.Process, value)
}

// whereOp calls the shared function "where". Its result is the id of the process that ran it.
var whereOp = fixture.NewOp("where", func(w *fixture.Worker, ctx context.Context, _ fixture.None) (int32, error) {
	pid, err := thisNode.where(ctx, struct{}{})
	return int32(pid), err
})

// where returns the process that runs the shared functions of a child.
func where(c *fixture.Child) int32 {
	c.T.Helper()
	return whereOp.Must(c.Process, fixture.None{})
}

// burstOp calls the shared function "burst", which panics.
var burstOp = fixture.NewOp("burst", func(w *fixture.Worker, ctx context.Context, _ fixture.None) (fixture.None, error) {
	_, err := thisNode.burst(ctx, struct{}{})
	return fixture.None{}, err
})

// burstError is the error of the shared function that panics.
func burstError(c *fixture.Child) error {
	c.T.Helper()
	return fixture.Failure(c, burstOp, fixture.None{})
}

// nestOp calls the shared function "nest". Its result is the size of the tree of tasks.
var nestOp = fixture.NewOp("nest", func(w *fixture.Worker, ctx context.Context, overSocket bool) (int, error) {
	return thisNode.nest(ctx, nestIn{Depth: 3, Width: 2, OverSocket: overSocket})
})

// logOp returns the log of the node.
var logOp = fixture.NewOp("log", func(w *fixture.Worker, _ context.Context, _ fixture.None) (string, error) {
	return thisNode.log.String(), nil
})

// logOf returns the log of a child's node.
func logOf(c *fixture.Child) string {
	c.T.Helper()
	return logOp.Must(c.Process, fixture.None{})
}

// dialDefaultOp connects to the owner that the environment names. Its result is the socket.
var dialDefaultOp = fixture.NewOp("dial default", func(w *fixture.Worker, ctx context.Context, _ fixture.None) (socket string, err error) {
	if w.Client, err = endpoint.Dial(ctx, endpoint.ClientOptions{}); err != nil {
		return "", err
	}
	return w.Client.Socket(), nil
})

// dialDefault connects a child to the owner that its environment names, and returns the socket.
func dialDefault(c *fixture.Child) string {
	c.T.Helper()
	return dialDefaultOp.Must(c.Process, fixture.None{})
}

// dialDefaultError is the error of a connection to the owner that the environment names, which has to fail.
func dialDefaultError(c *fixture.Child) error {
	c.T.Helper()
	return fixture.Failure(c, dialDefaultOp, fixture.None{})
}

// shareOf shares the functions of the child's program on its node.
func shareOf(w *fixture.Worker) (err error) {
	r := &thisNode
	r.twice, err = nodepkg.Share(r.node, "twice", func(_ context.Context, in fixture.ScaleIn) (*tensor.Tensor, error) {
		list, err := tensor.Float32s(in.X)
		if err != nil {
			return nil, err
		}
		return fixture.Filled(w.Dev, len(list), list[0]*in.By)
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

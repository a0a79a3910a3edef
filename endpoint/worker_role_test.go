package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// roles is what a child has of a node, which it opens in the role that the command or its environment says.
type roles struct {
	node   *endpoint.Node
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

// role are the commands of a child with a node.
func (w *worker) role(ctx context.Context, do command) (a answer, err error) {
	r := &w.roles
	switch do.Do {
	case "open node":
		opts := endpoint.Options{
			BasePath:    do.Key,
			DeviceIndex: int(do.Version),
			Wait:        do.Wait,
			ServerOptions: endpoint.ServerOptions{
				Socket: do.Socket, Devices: driversOf(w.dev), Logger: slog.New(slog.NewTextHandler(&r.log, nil)),
				Tasks: endpoint.TaskOptions{Workers: 2},
			},
		}
		if do.Name != "" {
			if opts.Mode, err = endpoint.ParseMode(do.Name); err != nil {
				return a, err
			}
		}
		if r.node, err = endpoint.Open(ctx, opts); err == nil {
			a.State, a.Name = r.node.Mode().String(), r.node.Socket()
		}
	case "share":
		err = w.share()
	case "ready":
		r.node.Ready()
		if r.itself == nil && r.node.Mode() == endpoint.ModeServer {
			r.itself, err = endpoint.Dial(ctx, endpoint.ClientOptions{OverSocket: true, Socket: r.node.Socket()})
		}
	case "about":
		var info endpoint.RuntimeInfo
		info, err = r.node.Info(ctx)
		a.State = fmt.Sprintf("%v %v %d", info.ServerRunning, info.ServerReady, info.Registered)
	case "twice":
		x, err := filled(w.dev, 3, float32(do.Seed))
		if err != nil {
			return a, err
		}
		defer x.Close()
		y, err := r.twice(ctx, scaleIn{X: x, By: 2})
		if err != nil {
			return a, err
		}
		defer y.Close()
		list, err := tensor.Float32s(y)
		a.Kind, a.Value = fmt.Sprintf("%T", y), float64(list[0])
		return a, err
	case "where":
		pid, err := r.where(ctx, struct{}{})
		a.ID = strconv.Itoa(pid)
		return a, err
	case "burst":
		_, err = r.burst(ctx, struct{}{})
	case "nest":
		n, err := r.nest(ctx, nestIn{Depth: 3, Width: 2, OverSocket: do.Wait})
		a.Value = float64(n)
		return a, err
	case "log":
		a.State = r.log.String()
	case "close node":
		err = r.node.Close()
	case "dial many":
		errs := make(chan error, do.Tensors)
		for range do.Tensors {
			go func() {
				c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: do.Socket})
				if err == nil {
					_, err = c.Ping(ctx)
					c.Close()
				}
				errs <- err
			}()
		}
		for range do.Tensors {
			err = errors.Join(err, <-errs)
		}
	case "dial default":
		if w.client, err = endpoint.Dial(ctx, endpoint.ClientOptions{}); err == nil {
			a.Name, a.ID = w.client.Socket(), w.client.ServerID()
		}
	}
	return a, err
}

// share makes the functions of the child's program those of its node.
func (w *worker) share() (err error) {
	r := &w.roles
	r.twice, err = endpoint.Share(r.node, "twice", func(_ context.Context, in scaleIn) (*tensor.Tensor, error) {
		list, err := tensor.Float32s(in.X)
		if err != nil {
			return nil, err
		}
		return filled(w.dev, len(list), list[0]*in.By)
	})
	if err != nil {
		return err
	}
	r.where, err = endpoint.Share(r.node, "where", func(context.Context, struct{}) (int, error) { return os.Getpid(), nil })
	if err != nil {
		return err
	}
	r.burst, err = endpoint.Share(r.node, "burst", func(context.Context, struct{}) (int, error) { panic("no such luck") })
	if err != nil {
		return err
	}
	r.nest, err = endpoint.Share(r.node, "nest", func(ctx context.Context, in nestIn) (int, error) {
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
	}, endpoint.Task())
	return err
}

package endpoint_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// What is ended by a context with a cause answers for both: the cause, and the way in which the context ended.
func TestCauseOfContext(t *testing.T) {
	r := endpoint.NewRegistry()
	wait := func(ctx context.Context, _ struct{}) (int, error) { <-ctx.Done(); return 0, context.Cause(ctx) }
	require.NoError(t, endpoint.Register(r, "wait", wait, endpoint.NoCache()))
	require.NoError(t, endpoint.Register(r, "cached", wait, endpoint.Cached()))
	require.NoError(t, endpoint.Register(r, "task", wait, endpoint.NoCache(), endpoint.AsTask()))
	dev := fixture.Device(t)
	ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r})
	sd := module.NewStateDict()
	x, err := tensor.Zeros(dev, tensor.Float32, tensor.Shape{4})
	require.NoError(t, err)
	require.NoError(t, sd.Set("x", x))
	defer sd.Close()
	encoded := t.TempDir() + "/m.safetensors"
	require.NoError(t, module.Save(ctx, encoded, sd, module.SaveOptions{}))

	mine := errors.New("mine")
	ways := map[error]func() (context.Context, context.CancelFunc){
		context.Canceled: func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(10*time.Millisecond, func() { cancel(mine) })
			return ctx, func() { cancel(nil) }
		},
		context.DeadlineExceeded: func() (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(ctx, 10*time.Millisecond, mine)
		},
	}
	for kind, do := range map[string]func(ctx context.Context, from endpoint.Caller) error{
		"call":   func(ctx context.Context, from endpoint.Caller) error { return from.Call(ctx, "wait", nil, nil) },
		"cached": func(ctx context.Context, from endpoint.Caller) error { return from.Call(ctx, "cached", nil, nil) },
		"task":   func(ctx context.Context, from endpoint.Caller) error { return from.Call(ctx, "task", nil, nil) },
		"wait": func(ctx context.Context, from endpoint.Caller) error {
			task, err := from.Submit(context.WithoutCancel(ctx), "wait", nil)
			require.NoError(t, err)
			_, err = task.Wait(ctx)
			_, cancelErr := task.Cancel(context.WithoutCancel(ctx))
			return errors.Join(err, cancelErr)
		},
		"watch tasks": func(ctx context.Context, from endpoint.Caller) (err error) {
			for _, err = range from.WatchTasks(ctx, endpoint.TaskFilter{}) {
				if err != nil {
					break
				}
			}
			return err
		},
		"watch": func(ctx context.Context, _ endpoint.Caller) error {
			<-ctx.Done()
			_, err := c.Watch(ctx, "m")
			return err
		},
		"follow": func(ctx context.Context, _ endpoint.Caller) error {
			_, err := endpoint.Follow(ctx, c, "nothing", func(context.Context, endpoint.ModelVersion) (int, error) { return 0, nil }, endpoint.FollowOptions{})
			return err
		},
		"acquire": func(ctx context.Context, _ endpoint.Caller) error {
			<-ctx.Done()
			_, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
			return err
		},
		"publish": func(ctx context.Context, _ endpoint.Caller) error {
			<-ctx.Done()
			_, err := s.Publish(ctx, "m", sd, endpoint.PublishOptions{Digests: true})
			return err
		},
		"load": func(ctx context.Context, _ endpoint.Caller) error {
			<-ctx.Done()
			_, err := module.Load(ctx, dev, encoded, module.LoadOptions{})
			return err
		},
		"save": func(ctx context.Context, _ endpoint.Caller) error {
			<-ctx.Done()
			return module.Save(ctx, t.TempDir()+"/n.safetensors", sd, module.SaveOptions{})
		},
	} {
		for end, way := range ways {
			for place, from := range map[string]endpoint.Caller{"client": c, "server": s} {
				t.Run(kind+" "+end.Error()+" "+place, func(t *testing.T) {
					ctx, cancel := way()
					defer cancel()
					err := do(ctx, from)
					require.ErrorIs(t, err, end)
					if end == context.Canceled || !strings.Contains(err.Error(), "owner: ") { // the owner may reach the deadline first
						require.ErrorIs(t, err, mine)
					}
				})
			}
		}
	}
}

package endpoint_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// publisher has the methods that clients and servers have in common.
type publisher interface {
	endpoint.Models
	Publish(ctx context.Context, name string, sd *module.StateDict, opts endpoint.PublishOptions) (uint64, error)
	Rollback(ctx context.Context, name string, version uint64) (uint64, error)
	Withdraw(ctx context.Context, name string) error
	NewVersion(ctx context.Context, name string, specs []module.NamedSpec) (*endpoint.VersionWriter, error)
	Digests(ctx context.Context, name string, version uint64) (endpoint.VersionDigests, error)
	Follow(ctx context.Context, name string, opts endpoint.FollowOptions) (*endpoint.Follower[endpoint.ModelVersion], error)
}

// An error of an operation on a model has the name and the version as fields, and names the model once.
func TestErrorsNameTheirModel(t *testing.T) {
	ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{})
	sd := module.NewStateDict()
	x, err := tensor.Zeros(fixture.Device(t), tensor.Float32, tensor.Shape{4})
	require.NoError(t, err)
	require.NoError(t, sd.Set("x", x))
	defer sd.Close()
	five := uint64(5)
	late, cancel := context.WithCancel(ctx)
	cancel()
	for kind, do := range map[string]func(p publisher, name string) error{
		"acquire 5": func(p publisher, name string) error {
			_, err := p.Acquire(ctx, name, endpoint.AcquireOptions{Version: 5})
			return err
		},
		"roll back 5":  func(p publisher, name string) error { _, err := p.Rollback(ctx, name, 5); return err },
		"digests of 5": func(p publisher, name string) error { _, err := p.Digests(ctx, name, 5); return err },
		"withdraw":     func(p publisher, name string) error { return p.Withdraw(ctx, name) },
		"publish": func(p publisher, name string) error {
			_, err := p.Publish(ctx, name, sd, endpoint.PublishOptions{Current: &five})
			return err
		},
		"follow": func(p publisher, name string) error {
			_, err := p.Follow(late, name, endpoint.FollowOptions{})
			return err
		},
		"new version of": func(p publisher, name string) error {
			_, err := p.NewVersion(ctx, name, []module.NamedSpec{{Name: "x"}})
			return err
		},
	} {
		op := strings.TrimSuffix(kind, " 5")
		for place, p := range map[string]publisher{"client": c, "server": s} {
			t.Run(kind+" "+place, func(t *testing.T) {
				err := do(p, "missing")
				var of *endpoint.ModelError
				require.ErrorAs(t, err, &of, "%v", err)
				require.Equal(t, op, of.Op)
				require.Equal(t, "missing", of.Name)
				require.Equal(t, strings.HasSuffix(kind, " 5"), of.Version == 5)
				require.Equal(t, 1, strings.Count(err.Error(), "missing"), err.Error())
				require.Error(t, errors.Unwrap(of))
			})
		}
	}
	for kind, do := range map[string]func(name string) error{
		"info of":     func(name string) error { _, err := c.Info(ctx, name); return err },
		"manifest of": func(name string) error { _, err := c.Manifest(ctx, name, 5); return err },
		"withdraw":    func(name string) error { return c.WithdrawIf(ctx, name, 5) },
	} {
		for _, name := range []string{"missing", "", strings.Repeat("x", 1000)} {
			var of *endpoint.ModelError
			err := do(name)
			require.ErrorAs(t, err, &of, kind)
			require.Equal(t, kind, of.Op)
			require.LessOrEqual(t, len(of.Name), 140)
		}
	}
}

package endpoint_test

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/wire"
)

func TestB40LogLinesCarryTheirValues(t *testing.T) {
	var log bytes.Buffer
	node, err := endpoint.Open(context.Background(), endpoint.Options{
		Mode: endpoint.ModeLocal, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	require.NoError(t, err)
	burst, err := endpoint.Share(node, "burst", func(context.Context, struct{}) (int, error) { panic("no such luck") })
	require.NoError(t, err)
	_, err = burst(context.Background(), struct{}{})
	require.ErrorContains(t, err, "no such luck")
	require.NotContains(t, err.Error(), "goroutine", "the stack stays with the owner")
	require.NoError(t, node.Close())
	require.Contains(t, log.String(), "endpoint=burst")
	require.Contains(t, log.String(), "no such luck")
	require.Contains(t, log.String(), "goroutine")
}

func TestB41MisspeltWordsAreErrors(t *testing.T) {
	c, _, o := calling(t)
	ctx := context.Background()
	err := c.Call(ctx, "model", map[string]any{"size": 4, "lable": "x"}, nil)
	require.ErrorIs(t, err, wire.CodeSerialization)
	require.ErrorContains(t, err, `"lable"`)
	require.ErrorContains(t, c.Call(ctx, "sum", map[string]any{"z": 1}, nil), `"z"`, "in arguments with tensors too")
	require.Zero(t, ran(o, "model"))
	r := endpoint.NewRegistry()
	err = endpoint.Register(r, "x", func(context.Context, modelIn) (int, error) { return 0, nil }, endpoint.CacheKey("{seize}"))
	require.ErrorIs(t, err, endpoint.ErrInvalid)
	require.ErrorContains(t, err, `"seize"`)
}

func TestB43WhatTheProgramSaysGoesBeforeTheEnvironment(t *testing.T) {
	dir := filepath.Dir(socketPath(t))
	env, arg := filepath.Join(dir, "env"), filepath.Join(dir, "arg")
	t.Setenv(endpoint.EnvBasePath, env)
	t.Setenv(endpoint.EnvEnabled, "1")
	t.Setenv(endpoint.EnvRole, "server")
	ctx := context.Background()
	for _, row := range []struct {
		opts   endpoint.Options
		mode   endpoint.Mode
		socket string
	}{
		{endpoint.Options{}, endpoint.ModeServer, env + "-0.sock"},
		{endpoint.Options{BasePath: arg}, endpoint.ModeServer, arg + "-0.sock"},
		{endpoint.Options{BasePath: arg, DeviceIndex: 3}, endpoint.ModeServer, arg + "-3.sock"},
		{endpoint.Options{Socket: arg, BasePath: env}, endpoint.ModeServer, arg},
		{endpoint.Options{Mode: endpoint.ModeLocal}, endpoint.ModeLocal, ""},
	} {
		node, err := endpoint.Open(ctx, row.opts)
		require.NoError(t, err)
		require.Equal(t, row.mode, node.Mode())
		require.Equal(t, row.socket, node.Socket())
		if row.mode == endpoint.ModeServer { // a client on its own finds it by the same variable
			node.Ready()
			c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: row.socket})
			require.NoError(t, err)
			require.NoError(t, c.Close())
		}
		require.NoError(t, node.Close())
	}
	_, err := endpoint.Open(ctx, endpoint.Options{DeviceIndex: -1})
	require.ErrorIs(t, err, endpoint.ErrInvalid)
}

func TestAutoFindsItsRole(t *testing.T) {
	base := filepath.Join(filepath.Dir(socketPath(t)), "auto")
	owner, err := endpoint.NewServer(endpoint.ServerOptions{Socket: base + "-0.sock"})
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- owner.Serve() }()
	for _, row := range []struct {
		enabled, role string
		mode          endpoint.Mode
		err           error
	}{
		{"", "", endpoint.ModeLocal, nil},
		{"", "server", endpoint.ModeLocal, nil},
		{"0", "client", endpoint.ModeLocal, nil},
		{"maybe", "client", endpoint.ModeLocal, nil},
		{"1", "", endpoint.ModeClient, nil},
		{" TRUE ", " Client ", endpoint.ModeClient, nil},
		{"yes", "local", endpoint.ModeLocal, nil},
		{"on", "server", 0, endpoint.ErrInUse}, // there is a live owner
		{"on", "sever", 0, endpoint.ErrInvalid},
		{"on", "auto", 0, endpoint.ErrInvalid},
	} {
		t.Setenv(endpoint.EnvEnabled, row.enabled)
		t.Setenv(endpoint.EnvRole, row.role)
		node, err := endpoint.Open(context.Background(), endpoint.Options{BasePath: base})
		if row.err != nil {
			require.ErrorIs(t, err, row.err, "%+v", row)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, row.mode, node.Mode(), "%+v", row)
		info, err := node.Info(context.Background())
		require.NoError(t, err)
		require.True(t, info.Auto)
		require.NoError(t, node.Close())
	}
	require.NoError(t, owner.Close())
	require.ErrorIs(t, <-served, endpoint.ErrServerClosed)
	_, err = endpoint.Open(context.Background(), endpoint.Options{Mode: endpoint.ModeClient, BasePath: base})
	require.ErrorIs(t, err, endpoint.ErrUnavailable)
}

func TestB44DeadlinesReachTheFunction(t *testing.T) {
	drivertest.Leaks(t)
	c, _, o := calling(t)
	ctx := context.Background()
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Call(short, "gated run", gateIn{Gate: "never"}, nil), context.DeadlineExceeded)
	eventually(t, waitLimit, "the function is told to stop", func() bool { return ran(o, "gated run told to stop") == 1 })
	require.ErrorIs(t, c.Call(ctx, "hurried", gateIn{Gate: "never"}, nil), context.DeadlineExceeded, "an endpoint has a limit of its own")
	server, err := c.ServerInfo(ctx)
	require.NoError(t, err)
	for _, e := range server.Endpoints {
		if e.Name == "hurried" {
			require.EqualValues(t, 1, e.Runs)
			require.EqualValues(t, 1, e.Errors)
			require.GreaterOrEqual(t, e.P99, 10*time.Millisecond)
		}
	}
}

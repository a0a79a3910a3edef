package node_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	nodepkg "github.com/sharedtensor/sharedtensor/endpoint/node"
)

// Environment variables that nodes read.
const (
	envEnabled, envRole, envBasePath = "SHARED_TENSOR_ENABLED", "SHARED_TENSOR_ROLE", "SHARED_TENSOR_BASE_PATH"
	envLocalRank, envRank            = "LOCAL_RANK", "RANK"
	envLogLevel                      = "SHARED_TENSOR_LOG_LEVEL"
)

// numberedDevice is a device with another index.
type numberedDevice struct {
	driver.Device
	index int
}

// Info implements [driver.Device].
func (d numberedDevice) Info() driver.Info {
	info := d.Device.Info()
	info.Index = d.index
	return info
}

func TestNodeSocketOfRank(t *testing.T) {
	base := filepath.Join(filepath.Dir(proctest.SocketPath(t)), "rank")
	third := []driver.Device{numberedDevice{fixture.Device(t), 3}}
	for _, row := range []struct {
		local, rank string
		opts        nodepkg.Options
		socket      string // empty for an error
	}{
		{"", "", nodepkg.Options{}, base + "-0.sock"},
		{"", "", nodepkg.Options{Devices: third}, base + "-3.sock"},
		{"", "5", nodepkg.Options{Devices: third}, base + "-5.sock"},
		{" 4 ", "5", nodepkg.Options{Devices: third}, base + "-4.sock"},
		{"0", "5", nodepkg.Options{Devices: third}, base + "-0.sock"},
		{"4", "5", nodepkg.Options{DeviceIndex: 2, Devices: third}, base + "-2.sock"},
		{"x", "5", nodepkg.Options{DeviceIndex: 2}, base + "-2.sock"},
		{"4", "", nodepkg.Options{Socket: base + ".sock"}, base + ".sock"},
		{"x", "5", nodepkg.Options{}, ""},
		{"", "-1", nodepkg.Options{}, ""},
	} {
		t.Setenv(envLocalRank, row.local)
		t.Setenv(envRank, row.rank)
		row.opts.Mode, row.opts.BasePath = nodepkg.ModeServer, base
		node, err := nodepkg.Open(context.Background(), row.opts)
		if row.socket == "" {
			require.ErrorIs(t, err, endpoint.ErrConfiguration, "%+v", row)
			row.opts.Mode = nodepkg.ModeLocal
			node, err = nodepkg.Open(context.Background(), row.opts)
			require.NoError(t, err, "alone it is nobody's business")
			require.NoError(t, node.Close())
			continue
		}
		require.NoError(t, err, "%+v", row)
		require.Equal(t, row.socket, node.Socket(), "%+v", row)
		require.NoError(t, node.Close())
	}
}

// errorOutput returns the standard error output of do.
func errorOutput(t testing.TB, do func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	old := os.Stderr
	os.Stderr = w
	defer func() { os.Stderr = old }()
	do()
	require.NoError(t, w.Close())
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(text)
}

func TestLogLevelOfEnvironment(t *testing.T) {
	for level, words := range map[string][]string{
		"":         {},
		"debug":    {"gone wrong", "withdrawn"},
		" INFO ":   {"gone wrong", "withdrawn"},
		"Warning":  {"gone wrong"},
		"warn":     {"gone wrong"},
		"error":    {"gone wrong"},
		"critical": {},
	} {
		t.Setenv(envLogLevel, level)
		text := errorOutput(t, func() {
			node, err := nodepkg.Open(context.Background(), nodepkg.Options{Mode: nodepkg.ModeLocal, Devices: fixture.DriversOf(fixture.Device(t))})
			require.NoError(t, err)
			_, err = nodepkg.Share(node, "panic", func(context.Context, struct{}) (int, error) { panic("gone wrong") })
			require.NoError(t, err)
			if level != "" { // otherwise it would go to the test's log
				require.Error(t, node.Call(context.Background(), "panic", nil, nil))
			}
			sd, err := fixture.Synthetic(fixture.Device(t), fixture.Model{Seed: 1})
			require.NoError(t, err)
			fixture.PublishOn(t, node.Server(), "m", sd)
			require.NoError(t, node.Server().Withdraw(context.Background(), "m"))
			require.NoError(t, node.Close())
		})
		for _, word := range []string{"gone wrong", "withdrawn"} {
			require.Equal(t, strings.Contains(strings.Join(words, " "), word), strings.Contains(text, word), "%q: %s", level, text)
		}
	}
	t.Setenv(envLogLevel, "loud")
	_, err := nodepkg.Open(context.Background(), nodepkg.Options{Mode: nodepkg.ModeLocal})
	require.ErrorIs(t, err, endpoint.ErrConfiguration)
	require.True(t, errors.Is(err, endpoint.ErrInvalid))
	node, err := nodepkg.Open(context.Background(), nodepkg.Options{Mode: nodepkg.ModeLocal, Logger: fixture.Discard()})
	require.NoError(t, err, "what the program says goes before it")
	require.NoError(t, node.Close())
}

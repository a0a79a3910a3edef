package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test binary also serve as a server process.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestEveryPeerCallsAnotherProcess(t *testing.T) {
	mem, err := newMemory()
	require.NoError(t, err)
	defer mem.Close()
	arg, err := mem.argument(100_000)
	require.NoError(t, err)
	defer arg.tensor.Close()
	for _, p := range peers() {
		t.Run(p.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "peers")
			require.NoError(t, err)
			defer os.RemoveAll(dir)
			s, err := startServer(p, filepath.Join(dir, "s"))
			require.NoError(t, err)
			defer s.Close()
			c, err := p.dial(filepath.Join(dir, "s"), 2)
			require.NoError(t, err)
			defer c.Close()
			got, err := c.echo(context.Background(), []byte("there and back"))
			require.NoError(t, err)
			require.Equal(t, "there and back", string(got))
			saw, err := c.send(context.Background(), arg)
			require.NoError(t, err)
			require.Contains(t, []uint64{sign(arg.bytes), uint64(len(arg.bytes))}, saw)
		})
	}
}

func TestQuickRun(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(context.Background(), []string{"--quick", "--json"}, &out, io.Discard))
	var r report
	require.NoError(t, json.Unmarshal(out.Bytes(), &r))
	require.Len(t, r.Peers, len(peers()))
	for _, row := range r.Targets {
		require.Positive(t, row.Value, row.Name)
		if strings.HasPrefix(row.Rival, "iceoryx2") { // building its program takes minutes
			require.Equal(t, notInQuickRun, row.Skipped, row.Name)
		} else if row.Rival == streamerName {
			require.NotEmpty(t, row.Skipped, row.Name)
		} else {
			require.Empty(t, row.Skipped, row.Name)
			require.Positive(t, row.Ratio, row.Name)
		}
		if row.Rival == "none" {
			require.True(t, row.OK, "%s; this one does not depend on what else the machine does", row.line())
		}
	}
	onlySmall := map[string]bool{}
	for _, p := range peers() {
		onlySmall[p.name] = p.onlySmall
	}
	for _, p := range r.Peers {
		if p.Name != oursReading().name {
			require.Positive(t, p.CallP50, p.Name)
			require.Positive(t, p.Cost, p.Name)
			require.Positive(t, p.Rate, p.Name)
		}
		require.Empty(t, p.Skipped, p.Name)
		for _, size := range p.Tensors {
			if !onlySmall[p.Name] {
				require.Positive(t, size.Calls, p.Name)
			}
		}
	}
	out.Reset()
	require.NoError(t, r.writeTable(&out))
	require.Contains(t, out.String(), "grpc-go")
}

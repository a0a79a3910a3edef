package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// binRun runs `bin ARGS` against a server and returns its output.
func binRun(t *testing.T, url, stdin string, args ...string) (out, errs string, status int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status = run(t.Context(), append([]string{"bin", "--nats", url}, args...), strings.NewReader(stdin), &stdout, &stderr)
	return stdout.String(), stderr.String(), status
}

func TestBinCommands(t *testing.T) {
	server, err := natslink.Start(natslink.ServerOptions{Store: t.TempDir(), Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	defer server.Close()
	url, file := server.URL(), filepath.Join(t.TempDir(), "item")
	require.NoError(t, os.WriteFile(file, []byte("from a file"), 0o600))
	for _, step := range []struct {
		args   []string
		stdin  string
		out    string
		status int
	}{
		{[]string{"append", "a.b"}, "one", "", 0},
		{[]string{"append", "a.b", file, "--meta", "k=v"}, "", "", 0},
		{[]string{"append", "evil\x1b[2J\nname", "--text", "three"}, "", "", 0},
		{[]string{"peek", "a.b"}, "", "one\nfrom a file\n", 0},
		{[]string{"ls", "a.>"}, "", "BIN  ITEMS\na.b  2\n", 0},
		{[]string{"ls"}, "", "BIN            ITEMS\na.b            2\nevil?[2J?name  1\n", 0},
		{[]string{"put", "a.b", "-", "--json"}, "four", "{\"bin\":\"a.b\",\"bytes\":4,\"sequence\":4}\n", 0},
		{[]string{"get", "a.b"}, "", "four", 0},
		{[]string{"get", "a.b"}, "", "", statusFailed},
		{[]string{"put", "l", "--list", "--text", "[1, \"two\"]"}, "", "", 0},
		{[]string{"append", "l", "--text", "three"}, "", "", 0},
		{[]string{"get", "l", "--max", "1"}, "", "1\n\"two\"\n", 0},
		{[]string{"ls", "l"}, "", "BIN  ITEMS\nl    1\n", 0},
		{[]string{"get", "l", "--max", "5"}, "", "three", 0},
		{[]string{"get", "l", "--max", "-1"}, "", "", statusUsage},
		{[]string{"put", "l", "--list", "--text", "no list"}, "", "", statusFailed},
		{[]string{"rm", "a.b", "evil\x1b[2J\nname"}, "", "", 0},
		{[]string{"ls", "--json"}, "", "", 0},
		{[]string{"put"}, "", "", statusUsage},
		{[]string{"nonsense"}, "", "", statusUsage},
		{[]string{"lst", "a"}, "", "", statusUsage},
		{[]string{"put", "x", file, "--text", "y"}, "", "", statusUsage},
		{[]string{"put", "x..y"}, "", "", statusFailed},
	} {
		out, errs, status := binRun(t, url, step.stdin, step.args...)
		require.Equal(t, step.status, status, "%v: %s", step.args, errs)
		require.Equal(t, step.out, out, "%v", step.args)
	}
	out, _, _ := binRun(t, url, "", "put", "j", "--text", "\xff", "--json")
	require.NotEmpty(t, out)
	out, _, _ = binRun(t, url, "", "peek", "j", "--json")
	require.Contains(t, out, `"base64":"/w=="`)
}

func TestBinListenAndWait(t *testing.T) {
	server, err := natslink.Start(natslink.ServerOptions{Store: t.TempDir(), Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	defer server.Close()
	got := make(chan string, 1)
	go func() {
		var out, errs bytes.Buffer
		run(t.Context(), []string{"bin", "--nats", server.URL(), "get", "later", "--wait"}, nil, &out, &errs)
		got <- out.String() + errs.String()
	}()
	heard := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		var out, errs bytes.Buffer
		run(ctx, []string{"bin", "--nats", server.URL(), "listen", "x"}, nil, &out, &errs)
		heard <- out.String() + errs.String()
	}()
	time.Sleep(200 * time.Millisecond)
	_, errs, status := binRun(t, server.URL(), "", "put", "later", "--text", "now")
	require.Zero(t, status, errs)
	require.Equal(t, "now", <-got)
	for range 2 {
		_, errs, status = binRun(t, server.URL(), "", "append", "x", "--text", "y")
		require.Zero(t, status, errs)
	}
	time.Sleep(100 * time.Millisecond)
	cancel()
	require.Equal(t, "x|1\nx|2\n", <-heard)
}

func TestBinWithoutServer(t *testing.T) {
	_, errs, status := binRun(t, "nats://127.0.0.1:1", "", "ls")
	require.Equal(t, statusFailed, status)
	require.Contains(t, errs, "start `sharedtensor-gateway serve`")
}

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
	"github.com/sharedtensor/sharedtensor/module"
)

// requireOwnerHas waits until the newest version of a name at an owner equals a file.
func requireOwnerHas(t *testing.T, socket, name, path string) {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	client, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	require.NoError(t, err)
	defer client.Close()
	want, err := module.Load(t.Context(), dev, path, module.LoadOptions{})
	require.NoError(t, err)
	defer want.Close()
	remotetest.Eventually(t, func() error { return compare(t.Context(), client, name, want) })
}

func compare(ctx context.Context, client *endpoint.Client, name string, want *module.StateDict) error {
	h, err := client.Acquire(ctx, name, endpoint.AcquireOptions{})
	if err != nil {
		return err
	}
	defer h.Close()
	for key, x := range want.All() {
		y, found := h.StateDict().Get(key)
		if !found {
			return fmt.Errorf("no tensor %s", key)
		}
		if equal, err := x.Equal(y); err != nil || !equal {
			return fmt.Errorf("tensor %s is another: %w", key, err)
		}
	}
	return nil
}

// `mirror` copies a model from one owner to another, once and continuously, in separate processes.
func TestMirrorCommand(t *testing.T) {
	dir := t.TempDir()
	files := make([]string, 2)
	for i := range files {
		files[i] = filepath.Join(dir, fmt.Sprintf("model%d.safetensors", i))
		require.NoError(t, module.SynthesizeFile(files[i], module.Synthetic{Tensors: 5, Bytes: 3 << 20, Seed: uint64(i + 1)}))
	}
	from, to := remotetest.StartOwner(t, "--file", "m="+files[0]), remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, from.Socket)
	requireReady(t, gw)

	out, errs, status := runProcess(t, "mirror", gw.HTTP()+"/m", "--as", "copy", "--owner", to.Socket)
	require.Zero(t, status, errs)
	require.Regexp(t, `^published copy version 1: version 1 of http://.*/m, 5 tensors, \d+ bytes, of which \d+ came over the network`, out)
	requireOwnerHas(t, to.Socket, "copy", files[0])
	out, errs, status = runProcess(t, "mirror", gw.HTTP()+"/m", "--as", "copy", "--owner", to.Socket, "--json")
	require.Zero(t, status, errs)
	var e mirror.Event
	require.NoError(t, json.Unmarshal([]byte(out), &e), out)
	require.Equal(t, mirror.EventUnchanged, e.Kind)
	out, errs, status = runProcess(t, "mirror", gw.HTTP()+"/m", "--as", "other", "--owner", to.Socket, "--digest", e.Result.Digest)
	require.Zero(t, status, errs)
	require.Contains(t, out, e.Result.Digest)

	cmd := command(t, "mirror", gw.HTTP()+"/m", "--as", "copy", "--owner", to.Socket, "--follow", "--json")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stdout)
	require.True(t, lines.Scan())
	require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
	require.Equal(t, mirror.EventUnchanged, e.Kind, "the version that is there already is known by its digests")
	_, errs, status = runProcess(t, "send", files[1], "--to", gw.Addresses.GRPC, "--name", "m")
	require.Zero(t, status, errs)
	for lines.Scan() {
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		if e.Kind == mirror.EventPublished {
			break
		}
	}
	require.Equal(t, uint64(2), e.Result.Version)
	requireOwnerHas(t, to.Socket, "copy", files[1])
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	for lines.Scan() { // until EOF, as Wait requires
		continue
	}
	require.NoError(t, cmd.Wait(), "it was told to stop, and stopped")
}

// A second mirror fetches a model from the first, and continues with the source when the first is killed. A mirror
// without the token is refused.
func TestMirrorCommandPeers(t *testing.T) {
	server, err := natslink.Start(natslink.ServerOptions{Store: t.TempDir(), Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	defer server.Close()
	from, first, second := remotetest.StartOwner(t, "--model", "m=4194304"), remotetest.StartOwner(t), remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, from.Socket)
	requireReady(t, gw)
	begin := func(owner *remotetest.Owner) (*exec.Cmd, *bufio.Scanner) {
		cmd := command(t, "mirror", gw.HTTP()+"/m", "--owner", owner.Socket, "--nats", server.URL(), "--token", "secret", "--range", "256KiB", "--follow", "--json")
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		return cmd, bufio.NewScanner(stdout)
	}
	published := func(lines *bufio.Scanner) (e mirror.Event) {
		for lines.Scan() {
			require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
			if e.Kind == mirror.EventPublished {
				return e
			}
		}
		t.Fatal("nothing was published")
		return e
	}
	giver, lines := begin(first)
	require.Zero(t, published(lines).Result.FromPeers)
	_, lines = begin(second)
	require.Greater(t, published(lines).Result.FromPeers, int64(3<<20))

	require.NoError(t, giver.Process.Kill())
	_ = giver.Wait() // best effort: it was killed
	file := filepath.Join(t.TempDir(), "next.safetensors")
	require.NoError(t, module.SynthesizeFile(file, module.Synthetic{Tensors: 5, Bytes: 3 << 20, Seed: 7}))
	_, errs, status := runProcess(t, "send", file, "--to", gw.Addresses.GRPC, "--name", "m")
	require.Zero(t, status, errs)
	require.Equal(t, uint64(2), published(lines).Result.SourceVersion)
	requireOwnerHas(t, second.Socket, "m", file)
}

// `mirror` takes a model from a local directory.
func TestMirrorCommandFromAFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "small.safetensors")
	require.NoError(t, module.SynthesizeFile(file, module.Synthetic{Tensors: 5, Bytes: 1 << 20, Seed: 1}))
	to := remotetest.StartOwner(t)
	out, errs, status := runProcess(t, "mirror", "file://"+file, "--owner", to.Socket)
	require.Zero(t, status, errs)
	require.Regexp(t, `^published small version 1: file:///.*/small.safetensors@[0-9a-f]{32}, 5 tensors`, out)
	requireOwnerHas(t, to.Socket, "small", file)
	out, errs, status = runProcess(t, "mirror", "file://"+file, "--owner", to.Socket)
	require.Zero(t, status, errs)
	require.Contains(t, out, "unchanged: small version 1")
}

// Invalid arguments are reported with a remedy, and nothing is published.
func TestMirrorCommandInvalid(t *testing.T) {
	to := remotetest.StartOwner(t)
	for name, c := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"no source":         {nil, statusUsage, "accepts 1 arg"},
		"another scheme":    {[]string{"ftp://host/m"}, statusUsage, "https://HOST:2537/NAME"},
		"no hub's name":     {[]string{"hf://a--b/c"}, statusUsage, "not ORG/MODEL"},
		"no bucket's key":   {[]string{"s3://bucket"}, statusUsage, "s3://BUCKET/KEY"},
		"no file":           {[]string{"file:///nothing.safetensors"}, statusFailed, "no such file"},
		"no name":           {[]string{"https://host:2537/"}, statusUsage, "names no model"},
		"a user in it":      {[]string{"https://a:b@host:2537/m"}, statusUsage, "a token goes apart"},
		"no digest":         {[]string{"https://host:2537/m", "--digest", "abc"}, statusUsage, "64"},
		"nobody there":      {[]string{"http://127.0.0.1:1/m", "--patience", "300ms"}, statusFailed, "connection refused"},
		"no owner":          {[]string{"http://127.0.0.1:1/m", "--owner", filepath.Join(t.TempDir(), "no.sock")}, statusFailed, "the owner on this host"},
		"peers without":     {[]string{"http://127.0.0.1:1/m", "--peers-url", "http://h:1"}, statusUsage, "--nats"},
		"peers in the open": {[]string{"http://127.0.0.1:1/m", "--nats", "nats://127.0.0.1:1", "--peers-listen", "0.0.0.0:0"}, statusUsage, "--peers-cert"},
		"no NATS":           {[]string{"http://127.0.0.1:1/m", "--nats", "nats://127.0.0.1:1"}, statusFailed, "--nats"},
		"following nothing": {[]string{"http://127.0.0.1:1/m@3", "--follow"}, statusFailed, "versions do not change"},
	} {
		t.Run(name, func(t *testing.T) {
			_, errs, status := runProcess(t, append([]string{"mirror", "--owner", to.Socket}, c.args...)...)
			require.Equal(t, c.status, status, errs)
			require.Contains(t, errs, c.says)
		})
	}
}

// If `mirror` is killed during a transfer, the owner has no new version, and the next attempt succeeds.
func TestMirrorCommandKilled(t *testing.T) {
	from, to := remotetest.StartOwner(t, "--model", "m=67108864"), remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, from.Socket)
	requireReady(t, gw)
	cmd := command(t, "mirror", gw.HTTP()+"/m", "--owner", to.Socket, "--json", "--connections", "1", "--range", "64KiB")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stdout)
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), mirror.EventFound)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // best effort: it was killed
	out, errs, status := runProcess(t, "mirror", gw.HTTP()+"/m", "--owner", to.Socket)
	require.Zero(t, status, errs)
	require.Contains(t, out, "published m version 1:", "the killed one published nothing")
}

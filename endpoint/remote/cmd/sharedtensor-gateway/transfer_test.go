package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/module"
)

// command returns a command line of the program as a separate process.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), commandEnv+"=1")
	return cmd
}

// runProcess runs a command line and waits for its end.
func runProcess(t *testing.T, args ...string) (out, errs string, status int) {
	t.Helper()
	cmd := command(t, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // best effort: the exit status is checked below
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

func requireReady(t *testing.T, gw *remotetest.Gateway) {
	t.Helper()
	remotetest.Eventually(t, func() error {
		resp, err := http.Get(gw.HTTP() + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}

// requireSame requires that two files contain the same tensors.
func requireSame(t *testing.T, a, b string) {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	want, err := loadFile(t.Context(), a, dev)
	require.NoError(t, err)
	defer want.Close()
	got, err := loadFile(t.Context(), b, dev)
	require.NoError(t, err)
	defer got.Close()
	require.ElementsMatch(t, want.Names(), got.Names())
	for name, x := range want.All() {
		y, _ := got.Get(name)
		equal, err := x.Equal(y)
		require.NoError(t, err)
		require.True(t, equal, name)
	}
}

// Files are sent to an owner behind a gateway and received again, over the network and in place. All programs are
// separate processes.
func TestSendAndReceive(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	requireReady(t, gw)
	dir := t.TempDir()
	file := filepath.Join(dir, "model.safetensors")
	require.NoError(t, module.SynthesizeFile(file, module.Synthetic{Tensors: 5, Bytes: 3 << 20, Seed: 1}))
	pickled := "../../stream/torchsave/testdata/state_dict.pt"
	version := 0
	for _, way := range []struct {
		says string
		args []string
	}{{"(unix socket, shared in place)", nil}, {"(grpc)", []string{"--network"}}} {
		for name, path := range map[string]string{"model": file, "pickled": pickled} {
			out, errs, status := runProcess(t, append([]string{"send", path, "--to", gw.Addresses.GRPC, "--name", name}, way.args...)...)
			require.Zero(t, status, errs)
			require.Contains(t, out, "published "+name+" version ")
			require.Contains(t, out, way.says)
			back := filepath.Join(dir, name+"-back.safetensors")
			out, errs, status = runProcess(t, append([]string{"receive", back, "--from", gw.Addresses.GRPC, "--name", name}, way.args...)...)
			require.Zero(t, status, errs)
			require.Contains(t, out, "received "+name+" version ")
			require.Contains(t, out, way.says)
			requireSame(t, path, back)
		}
		version++
		out, errs, status := runProcess(t, append([]string{"receive", filepath.Join(dir, "one.safetensors"), "--from", gw.Addresses.GRPC,
			"--name", "model", "--tensor", "layers.00000001.weight", "--json"}, way.args...)...)
		require.Zero(t, status, errs)
		var one transferred
		require.NoError(t, json.Unmarshal([]byte(out), &one))
		require.Equal(t, 1, one.Tensors)
		require.Equal(t, uint64(version), one.Version)
	}
}

// A transfer that fails leaves no file and reports the reason.
func TestTransferErrors(t *testing.T) {
	owner := remotetest.StartOwner(t, "--model", "m=4096")
	gw := remotetest.StartGateway(t, owner.Socket)
	requireReady(t, gw)
	dir := t.TempDir()
	path := filepath.Join(dir, "m.safetensors")
	evil := "../../stream/torchsave/testdata/evil.pt"
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"receive", path, "--from", gw.Addresses.GRPC, "--name", "other"}, statusFailed, "other"},
		{[]string{"receive", path, "--from", gw.Addresses.GRPC, "--name", "other", "--network"}, statusFailed, "not found"},
		{[]string{"receive", path, "--from", gw.Addresses.GRPC, "--version", "7", "--network"}, statusFailed, "7"},
		{[]string{"receive", path, "--from", gw.Addresses.GRPC, "--tensor", "nope", "--network"}, statusFailed, "nope"},
		{[]string{"receive", path, "--from", "127.0.0.1:1"}, statusFailed, "no gateway answers on 127.0.0.1:1"},
		{[]string{"receive", path, "--from", "127.0.0.1:1", "--network"}, statusFailed, "no gateway answers on 127.0.0.1:1"},
		{[]string{"receive", filepath.Join(dir, "m.bin"), "--from", gw.Addresses.GRPC}, statusUsage, ".safetensors"},
		{[]string{"send", path, "--to", gw.Addresses.GRPC}, statusFailed, "no such file"},
		{[]string{"send", dir, "--to", gw.Addresses.GRPC}, statusUsage, "files end in"},
		{[]string{"send", evil, "--to", gw.Addresses.GRPC}, statusFailed, "evil.pt"},
	} {
		out, errs, status := runProcess(t, c.args...)
		require.Equal(t, c.status, status, "%v: %s", c.args, errs)
		require.Contains(t, errs, c.says, "%v", c.args)
		require.Empty(t, out)
		list, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, list, "%v", c.args)
	}
}

// `send` continues with a new gateway after its gateway is frozen and killed.
func TestSendContinuesAtNextGateway(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	requireReady(t, gw)
	file := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, module.SynthesizeFile(file, module.Synthetic{Tensors: 4, Bytes: 256 << 20, Seed: 1}))
	cmd := command(t, "send", file, "--to", gw.Addresses.GRPC, "--network")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Start())
	remotetest.Eventually(t, func() error { // the transfer is in progress
		resp, err := http.Get(gw.HTTP() + "/metrics")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && bytes.Contains(text, []byte("sharedtensor_gateway_stream_pending_bytes 0")) {
			err = fmt.Errorf("nothing is on its way")
		}
		return err
	})
	gw.Stop()
	time.Sleep(100 * time.Millisecond)
	gw.Kill()
	next := remotetest.StartGateway(t, owner.Socket, "--grpc", gw.Addresses.GRPC)
	require.NoError(t, cmd.Wait(), "%s", &stderr)
	require.Contains(t, stdout.String(), "published model version ")
	back := filepath.Join(t.TempDir(), "back.safetensors")
	_, errs, status := runProcess(t, "receive", back, "--from", next.Addresses.GRPC, "--name", "model")
	require.Zero(t, status, errs)
	requireSame(t, file, back)
}

package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// If a received file does not fit on the disk, no new file exists and an existing file is unchanged.
func TestReceiveDiskFull(t *testing.T) {
	owner := remotetest.StartOwner(t, "--model", "m=8388608", "--model", "small=65536")
	gw := remotetest.StartGateway(t, owner.Socket)
	requireReady(t, gw)
	disk := remotetest.NewSmallDisk(t, 2<<20)
	path := filepath.Join(disk.Path, "m.safetensors")
	_, errs, status := runProcess(t, "receive", path, "--name", "small", "--from", gw.Addresses.GRPC)
	require.Zero(t, status, errs)
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, network := range []string{"--network=false", "--network"} {
		_, errs, status = runProcess(t, "receive", path, "--from", gw.Addresses.GRPC, network)
		require.Equal(t, statusFailed, status)
		require.Contains(t, errs, "no space left on device")
		after, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(before, after))
		list, err := os.ReadDir(disk.Path)
		require.NoError(t, err)
		require.Len(t, list, 1, "nothing is left of what did not fit")
	}
}

// If the disk of a gateway's store is full, bins and readiness report it, and models and functions still work. After a
// restart with free space, every acknowledged item exists.
func TestGatewayDiskFull(t *testing.T) {
	owner := remotetest.StartOwner(t, "--model", "m=65536")
	disk := remotetest.NewSmallDisk(t, 8<<20)
	withStore := []string{"--nats", "embedded", "--nats-listen", "127.0.0.1:0", "--store", filepath.Join(disk.Path, "store")}
	gw := remotetest.StartGateway(t, owner.Socket, withStore...)
	requireReady(t, gw)
	url := gw.Addresses.NATS
	item := filepath.Join(t.TempDir(), "item")
	require.NoError(t, os.WriteFile(item, make([]byte, 200<<10), 0o600))
	stored := 0
	for {
		_, errs, status := runProcess(t, "bin", "--nats", url, "--timeout", "5s", "append", "a", item)
		if status != 0 {
			t.Logf("after %d items: %s", stored, errs)
			break
		}
		require.Less(t, stored, 100, "the disk has room for fewer")
		stored++
	}
	require.NotZero(t, stored)
	remotetest.Eventually(t, func() error {
		resp, err := http.Get(gw.HTTP() + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusServiceUnavailable || !bytes.Contains(text, []byte("make room on its disk")) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	resp, err := http.Get(gw.HTTP() + "/v1/models/m/model.safetensors")
	require.NoError(t, err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "models are in memory")

	gw.Kill()
	disk.Resize(64 << 20)
	gw = remotetest.StartGateway(t, owner.Socket, withStore...)
	requireReady(t, gw)
	out, errs, status := runProcess(t, "bin", "--nats", gw.Addresses.NATS, "ls")
	require.Zero(t, status, errs)
	var items int
	_, err = fmt.Sscanf(out, "BIN  ITEMS\na    %d\n", &items)
	require.NoError(t, err, out)
	require.GreaterOrEqual(t, items, stored)
	require.LessOrEqual(t, items, stored+1, "and at most the one whose writer heard nothing")
	_, errs, status = runProcess(t, "bin", "--nats", gw.Addresses.NATS, "append", "a", item)
	require.Zero(t, status, errs)
}

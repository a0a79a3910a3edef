//go:build unix

package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// After a rotation and SIGHUP, the program writes to the new files. A file that cannot be opened does not end it.
func TestLogsAreOpenedAgain(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	require.NoError(t, err)
	dir, address := t.TempDir(), remotetest.FreeAddress(t)
	access := filepath.Join(dir, "logs", "access.jsonl")
	require.NoError(t, os.Mkdir(filepath.Dir(access), 0o700))
	cmd := exec.CommandContext(t.Context(), exe, "serve", "--owner", gateway.Off, "--http", address, "--grpc", gateway.Off, "--nats", gateway.Off,
		"--store", filepath.Join(dir, "store"), "--access-log", access, "--audit", filepath.Join(dir, "logs", "audit.jsonl"), "--lame-duck", "0s")
	cmd.Env = append(os.Environ(), commandEnv+"=1")
	require.NoError(t, cmd.Start())
	defer func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
	}()
	// written reports whether a request is recorded in a file.
	requests := 0
	written := func(path string) error {
		requests++
		id := fmt.Sprintf("request-%d", requests)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/v1/status", nil)
		require.NoError(t, err)
		request.Header.Set("X-Correlation-Id", id)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		if err := response.Body.Close(); err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil && !strings.Contains(string(text), `"`+id+`"`) {
			err = fmt.Errorf("%s has no record of %s:\n%s", path, id, text)
		}
		return err
	}
	remotetest.Eventually(t, func() error { return written(access) })
	for _, suffix := range []string{".1", ".2"} {
		require.NoError(t, os.Rename(access, access+suffix))
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		remotetest.Eventually(t, func() error { return written(access) })
		require.Error(t, written(access+suffix), "the earlier file gets no records")
	}
	moved := filepath.Join(dir, "moved")
	require.NoError(t, os.Rename(filepath.Dir(access), moved)) // the new file cannot be opened
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	remotetest.Eventually(t, func() error { return written(filepath.Join(moved, "access.jsonl")) })
	require.NoError(t, os.Rename(moved, filepath.Dir(access)))
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	remotetest.Eventually(t, func() error { return written(access) })
}

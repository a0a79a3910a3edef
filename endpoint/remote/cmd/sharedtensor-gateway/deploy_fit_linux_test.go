package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// policyIn returns the policy in a manifest.
func policyIn(t *testing.T, manifest string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(deployFolder, "kubernetes", manifest))
	require.NoError(t, err)
	_, text, found := strings.Cut(string(content), "policy.yaml: |\n")
	require.True(t, found)
	text, _, _ = strings.Cut(text, "---")
	return text
}

// runAs starts a program as a user and a group.
func runAs(t *testing.T, uid, gid uint32, env []string, program string, args ...string) *bytes.Buffer {
	t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env, cmd.Dir = &log, &log, append(os.Environ(), env...), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}, Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(program), log.String())
		}
	})
	return &log
}

// With the policies of the manifests, each kind of operation that the gateway's policy permits succeeds at the owner.
func TestDeployedPoliciesFit(t *testing.T) {
	t.Parallel()
	drivertest.Needs(t, "root", os.Getuid() == 0, "the owner and the gateway run as other users")
	const user, gatewayGroup = 65532, 2001
	dir, err := os.MkdirTemp("", "st") //nolint:usetesting // other users enter it
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	run := filepath.Join(dir, "run")
	store := filepath.Join(dir, "store")
	for _, folder := range []string{run, store} {
		require.NoError(t, os.Mkdir(folder, 0o711))
		require.NoError(t, os.Chown(folder, user, user))
	}
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.NoError(t, os.Chown(path, user, user))
		return path
	}
	owner := filepath.Join(dir, "sharedtensor")
	build := exec.Command("go", "build", "-o", owner, "./cmd/sharedtensor")
	build.Dir, build.Env = "../../../..", append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	program := filepath.Join(dir, "gateway")
	require.NoError(t, os.WriteFile(program, self, 0o755)) //nolint:gosec // others run it

	socket := filepath.Join(run, "owner.sock")
	runAs(t, user, user, nil, owner, "serve", "--socket", socket, "--policy", write("owner.yaml", policyIn(t, "owner.yaml")))
	address := remotetest.FreeAddress(t)
	tokens := write("tokens", "trainer-0123456789 trainer\nservice-0123456789 service\nprometheus-0123456789 prometheus\n")
	runAs(t, user, gatewayGroup, []string{commandEnv + "=1"}, program, "serve", "--owner", socket, "--http", address, "--grpc", "off", "--nats", "off",
		"--store", store, "--token-file", tokens, "--policy", write("gateway.yaml", policyIn(t, "gateway.yaml")))
	ask := func(method, path, token, body string, status int) string {
		t.Helper()
		answer := ""
		remotetest.Eventually(t, func() error { // the owner and the gateway start
			r, err := http.NewRequestWithContext(context.Background(), method, "http://"+address+path, strings.NewReader(body))
			require.NoError(t, err)
			r.Header.Set("Authorization", "Bearer "+token+"-0123456789")
			r.Header.Set("Content-Type", "application/json")
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode == http.StatusServiceUnavailable {
				return io.ErrUnexpectedEOF
			}
			require.Equal(t, status, resp.StatusCode, "%s %s: %s", method, path, text)
			answer = string(text)
			return nil
		})
		return answer
	}
	_, model := remotetest.TiedFile(t)
	file := "/v1/models/m/model.safetensors"
	ask(http.MethodPut, file, "trainer", string(model), http.StatusCreated)
	require.Contains(t, ask(http.MethodGet, "/v1/models", "trainer", "", http.StatusOK), `"m"`)
	ask(http.MethodGet, "/v1/models/m", "trainer", "", http.StatusOK)
	ask(http.MethodGet, "/v1/models/m/manifest?digests", "trainer", "", http.StatusOK)
	require.Equal(t, string(model), ask(http.MethodGet, file, "trainer", "", http.StatusOK))
	ask(http.MethodPost, "/v1/models/m/leases?seconds=5", "trainer", "", http.StatusOK)
	ask(http.MethodDelete, "/v1/models/m", "trainer", "", http.StatusNoContent)
	require.Contains(t, ask(http.MethodGet, "/metrics", "prometheus", "", http.StatusOK), "sharedtensor_limit{")
	call := `{"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"f"}}`
	require.Contains(t, ask(http.MethodPost, "/jsonrpc", "service", call, http.StatusOK), "-32001", "the owner has no function, and refuses no right")
	ask(http.MethodPut, file, "service", string(model), http.StatusForbidden)
}

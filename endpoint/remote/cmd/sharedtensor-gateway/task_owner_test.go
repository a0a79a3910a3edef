package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// A task belongs to the client that submitted it, also after the gateway was killed: only that client sees and cancels it.
func TestTasksBelongToTheirClients(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tokens, policy := filepath.Join(dir, "tokens"), filepath.Join(dir, "policy.yaml")
	require.NoError(t, os.WriteFile(tokens, []byte(matrixToken("alice")+" alice\n"+matrixToken("mallory")+" mallory\n"+matrixToken("admin")+" admin\n"), 0o600))
	require.NoError(t, os.WriteFile(policy, []byte("rules:\n  - {everyone: true, call: [\"*\"]}\n  - {tokens: [admin], control: true}\n"), 0o600))
	owner := remotetest.StartOwner(t)
	start := func() *remotetest.Gateway {
		return remotetest.StartGateway(t, owner.Socket, "--token-file", tokens, "--policy", policy, "--store", dir, "--insecure")
	}
	gw := start()
	rpc := func(name, method, params string) string {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+gw.Addresses.HTTP+"/jsonrpc",
			strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`))
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Authorization", "Bearer "+matrixToken(name))
		return bodyOf(t, request)
	}
	var task string
	remotetest.Eventually(t, func() error {
		answer := rpc("alice", "submit_task", `{"name":"sleep","args":[600000]}`)
		_, rest, found := strings.Cut(answer, `"task_id":"`)
		if !found {
			return fmt.Errorf("%s", answer)
		}
		task, _, _ = strings.Cut(rest, `"`)
		return nil
	})
	about := `{"task_id":"` + task + `"}`
	check := func() {
		for _, name := range []string{"mallory", "admin"} {
			for _, method := range []string{"get_task_status", "get_task_result", "wait_task", "cancel_task"} {
				answer := rpc(name, method, about)
				require.Contains(t, answer, "another client", "%s of %s", method, name)
				require.NotContains(t, answer, `"endpoint"`)
			}
			require.NotContains(t, rpc(name, "list_tasks", "{}"), task)
		}
		require.Contains(t, rpc("alice", "get_task_status", about), `"status"`)
		require.Contains(t, rpc("alice", "list_tasks", "{}"), task)
	}
	check()
	gw.Kill()
	gw = start()
	remotetest.Eventually(t, func() error {
		if answer := rpc("alice", "list_tasks", "{}"); !strings.Contains(answer, task) {
			return fmt.Errorf("%s", answer)
		}
		return nil
	})
	check()
	require.Contains(t, rpc("alice", "cancel_task", about), `"cancelled":true`)
}

func bodyOf(t *testing.T, request *http.Request) string {
	t.Helper()
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	var b strings.Builder
	require.NoError(t, response.Write(&b))
	return b.String()
}

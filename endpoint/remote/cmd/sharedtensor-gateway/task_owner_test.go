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

// taskClients are the clients of an owner's gateways: one token each, in a file with a policy.
type taskClients struct {
	args []string // of each gateway
}

func newTaskClients(t *testing.T) *taskClients {
	t.Helper()
	dir := t.TempDir()
	tokens, policy := filepath.Join(dir, "tokens"), filepath.Join(dir, "policy.yaml")
	require.NoError(t, os.WriteFile(tokens, []byte(matrixToken("alice")+" alice\n"+matrixToken("mallory")+" mallory\n"+matrixToken("admin")+" admin\n"), 0o600))
	require.NoError(t, os.WriteFile(policy, []byte("rules:\n  - {everyone: true, call: [\"*\"]}\n  - {tokens: [admin], control: true}\n"), 0o600))
	return &taskClients{[]string{"--token-file", tokens, "--policy", policy, "--insecure"}}
}

// rpc calls a method of a gateway. name is empty for a client without a token.
func (c *taskClients) rpc(t *testing.T, gw *remotetest.Gateway, name, method, params string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+gw.Addresses.HTTP+"/jsonrpc",
		strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	if name != "" {
		request.Header.Set("Authorization", "Bearer "+matrixToken(name))
	}
	return bodyOf(t, request)
}

// submit starts a task that ends when it is cancelled, and returns its id. It waits for the gateway's connection to the owner.
func (c *taskClients) submit(t *testing.T, gw *remotetest.Gateway, name string) (task string) {
	t.Helper()
	remotetest.Eventually(t, func() error {
		answer := c.rpc(t, gw, name, "submit_task", `{"name":"sleep","args":[600000]}`)
		_, rest, found := strings.Cut(answer, `"task_id":"`)
		if !found {
			return fmt.Errorf("%s", answer)
		}
		task, _, _ = strings.Cut(rest, `"`)
		return nil
	})
	return task
}

// Only the client that submitted a task sees and cancels it, at each gateway of the owner and after a restart of a gateway. A gateway
// without identities has one client, which sees all tasks. Its tasks require control at other gateways.
func TestTasksBelongToTheirClients(t *testing.T) {
	t.Parallel()
	owner, clients := remotetest.StartOwner(t), newTaskClients(t)
	first := remotetest.StartGateway(t, owner.Socket, clients.args...)
	second := remotetest.StartGateway(t, owner.Socket, clients.args...)
	open := remotetest.StartGateway(t, owner.Socket)
	alices, ofNobody := clients.submit(t, first, "alice"), clients.submit(t, open, "")
	all := []string{"get_task_status", "get_task_result", "wait_task", "cancel_task"}
	check := func(gw *remotetest.Gateway, name string, owned, foreign []string, why string) {
		for _, task := range foreign {
			for _, method := range all {
				answer := clients.rpc(t, gw, name, method, `{"task_id":"`+task+`"}`)
				require.Contains(t, answer, why, "%s of %s by %s", method, task, name)
				require.Contains(t, answer, `"code":-32007`)
				require.NotContains(t, answer, `"endpoint"`)
			}
		}
		remotetest.Eventually(t, func() error { // a gateway that has started connects to its owner
			answer := clients.rpc(t, gw, name, "list_tasks", "{}")
			for _, task := range owned {
				if !strings.Contains(answer, task) {
					return fmt.Errorf("%s does not see task %s: %s", name, task, answer)
				}
			}
			return nil
		})
		for _, task := range foreign {
			require.NotContains(t, clients.rpc(t, gw, name, "list_tasks", "{}"), task)
		}
		for _, task := range owned {
			require.Contains(t, clients.rpc(t, gw, name, "get_task_status", `{"task_id":"`+task+`"}`), `"status"`)
		}
	}
	both := []string{alices, ofNobody}
	for range 2 {
		for _, gw := range []*remotetest.Gateway{second, first} {
			check(gw, "alice", both[:1], nil, "")
			check(gw, "mallory", nil, both[:1], "another client")
			check(gw, "admin", both[1:], both[:1], "another client")
			check(gw, "alice", nil, both[1:], "not submitted by a client")
		}
		check(open, "", both, nil, "")
		first.Kill()
		first = remotetest.StartGateway(t, owner.Socket, clients.args...)
	}
	require.Contains(t, clients.rpc(t, second, "alice", "cancel_task", `{"task_id":"`+alices+`"}`), `"cancelled":true`)
	require.Contains(t, clients.rpc(t, second, "admin", "cancel_task", `{"task_id":"`+ofNobody+`"}`), `"cancelled":true`)
}

// An owner without labels refuses the tasks of clients with an identity. It runs the tasks of a gateway without identities.
func TestTasksOfOwnersWithoutLabels(t *testing.T) {
	t.Parallel()
	owner, clients := remotetest.StartOwner(t, "--without", "task-labels"), newTaskClients(t)
	gw := remotetest.StartGateway(t, owner.Socket, clients.args...)
	open := remotetest.StartGateway(t, owner.Socket)
	task := clients.submit(t, open, "")
	remotetest.Eventually(t, func() error {
		if answer := clients.rpc(t, gw, "admin", "list_tasks", "{}"); !strings.Contains(answer, task) {
			return fmt.Errorf("%s", answer)
		}
		return nil
	})
	for _, name := range []string{"alice", "admin"} {
		answer := clients.rpc(t, gw, name, "submit_task", `{"name":"sleep","args":[600000]}`)
		require.Contains(t, answer, "does not keep the labels of tasks")
		require.Contains(t, answer, `"code":-32601`)
		require.Contains(t, answer, `"outcome":"not_run"`)
		require.NotContains(t, clients.rpc(t, gw, name, "get_task_status", `{"task_id":"`+task+`"}`), `"label"`)
	}
	require.Equal(t, 1, strings.Count(clients.rpc(t, open, "", "list_tasks", "{}"), `"task_id"`), "nothing has run")
	require.Contains(t, clients.rpc(t, open, "", "cancel_task", `{"task_id":"`+task+`"}`), `"cancelled":true`)
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

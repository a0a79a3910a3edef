package jsonrpc_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// If the owner is killed during a call, the outcome of the call is unknown. Requests without an owner fail, and the
// next owner serves again.
func TestOwnerKilled(t *testing.T) {
	owner := remotetest.StartOwner(t, "--model", "m=4096")
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	ended := make(chan *rpcError, 1)
	go func() {
		_, text := postRaw(gw, `{"jsonrpc":"2.0","id":7,"method":"call_function","params":{"name":"sleep","args":[60000]}}`)
		ended <- errorOf(text)
	}()
	remotetest.Eventually(t, func() error { // the call runs
		if _, text := post(t, gw, `{"jsonrpc":"2.0","id":1,"method":"list_functions"}`); !strings.Contains(string(text), `"name":"sleep","calls":1`) {
			return fmt.Errorf("not yet: %s", text)
		}
		return nil
	})
	owner.Kill()
	bad := <-ended
	require.NotNil(t, bad)
	require.Equal(t, -32005, bad.Code, bad.Message)
	require.Equal(t, "unknown", bad.outcome(), "it was sent, and may have run")

	remotetest.Eventually(t, func() error { // until the gateway notices: a call sent earlier may have run
		bad := failed(t, gw, "call_function", map[string]any{"name": "add", "args": []int{1, 2}})
		require.Equal(t, -32005, bad.Code, bad.Message)
		require.Contains(t, []string{"unknown", "not_run"}, bad.outcome())
		if bad.outcome() == "unknown" {
			return fmt.Errorf("the call was sent: %s", bad.Message)
		}
		return nil
	})
	begin := time.Now()
	bad = failed(t, gw, "call_function", map[string]any{"name": "add", "args": []int{1, 2}})
	require.Equal(t, -32005, bad.Code, bad.Message)
	require.Equal(t, "not_run", bad.outcome())
	require.Equal(t, -32005, failed(t, gw, "list_models", nil).Code)
	resp, _ := gw.Get(t, "/v1/models/m/model.safetensors")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.Less(t, time.Since(begin), remotetest.Patience/2, "nobody waits for an owner that is away")
	resp, _ = gw.Get(t, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	resp, _ = gw.Get(t, "/healthz")
	require.Equal(t, http.StatusOK, resp.StatusCode)

	remotetest.StartOwner(t, "--socket", owner.Socket, "--model", "m=8192")
	gw.Attached(t)
	require.Equal(t, 3, result[int](t, gw, "call_function", map[string]any{"name": "add", "args": []int{1, 2}}))
	_, data := gw.Get(t, "/v1/models/m/tensors/layers.00000000.weight")
	_, manifest := gw.Get(t, "/v1/models/m/manifest")
	require.Contains(t, string(manifest), fmt.Sprintf(`"bytes":%d`, len(data)), "the new owner's model, not what was remembered of the old one's")
}

// postRaw is post for use outside the test goroutine.
func postRaw(gw *remotetest.Gateway, body string) (int, []byte) {
	resp, err := http.Post(gw.HTTP()+"/jsonrpc", "application/json", bytes.NewBufferString(body))
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, text
}

// If the gateway is killed during an upload, the owner has every acknowledged version and no other.
func TestGatewayKilled(t *testing.T) {
	_, file := remotetest.TiedFile(t)
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	resp, _ := gw.Do(t, http.MethodPut, "/v1/models/m/model.safetensors", bytes.NewReader(file))
	require.Equal(t, http.StatusCreated, resp.StatusCode)
	task := result[map[string]any](t, gw, "submit_task", map[string]any{"name": "work", "args": []int{2, 1}})
	conn, err := net.Dial("tcp", gw.Addresses.HTTP)
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "PUT /v1/models/m/model.safetensors HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", len(file))
	_, err = conn.Write(file[:len(file)-4])
	require.NoError(t, err)
	gw.Kill()

	next := remotetest.StartGateway(t, owner.Socket)
	next.Attached(t)
	_, again := next.Get(t, "/v1/models/m@1/model.safetensors")
	require.Equal(t, file, again)
	resp, _ = next.Get(t, "/v1/models/m@2/model.safetensors")
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
	require.Equal(t, 2, result[int](t, next, "get_task_result", []any{waitFor(t, next, task["task_id"])}), "tasks are the owner's")
}

func waitFor(t *testing.T, gw *remotetest.Gateway, id any) any {
	t.Helper()
	require.Equal(t, "completed", result[map[string]any](t, gw, "wait_task", []any{id})["status"])
	return id
}

// A client that stops reading a model is disconnected and its lease is released.
func TestSlowReader(t *testing.T) {
	owner := remotetest.StartOwner(t, "--model", "m=134217728")
	gw := remotetest.StartGateway(t, owner.Socket, "--stall", "500ms")
	gw.Attached(t)
	conn, err := net.Dial("tcp", gw.Addresses.HTTP)
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "GET /v1/models/m/tensors/layers.00000000.weight HTTP/1.1\r\nHost: localhost\r\n\r\n")
	_, err = io.ReadFull(conn, make([]byte, 1<<16))
	require.NoError(t, err)
	holders := func() string {
		_, text := post(t, gw, `{"jsonrpc":"2.0","id":1,"method":"holders","params":["m"]}`)
		return string(text)
	}
	require.Contains(t, holders(), "sharedtensor-gateway", "the gateway holds what it sends")
	remotetest.Eventually(t, func() error {
		if text := holders(); strings.Contains(text, "sharedtensor-gateway") {
			return fmt.Errorf("it still holds the version: %s", text)
		}
		return nil
	})
	rest, _ := io.Copy(io.Discard, conn)
	require.Less(t, rest, int64(24<<20), "the peer was cut off, and can see it by the length")
}

// A call is cancelled when its client disconnects.
func TestClientDisconnects(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	conn, err := net.Dial("tcp", gw.Addresses.HTTP)
	require.NoError(t, err)
	body := `{"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"sleep","args":[600000]}}`
	fmt.Fprintf(conn, "POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	stats := func() string {
		_, text := post(t, gw, `{"jsonrpc":"2.0","id":1,"method":"list_functions"}`)
		return string(text)
	}
	remotetest.Eventually(t, func() error {
		if text := stats(); !strings.Contains(text, `"name":"sleep","calls":1`) {
			return fmt.Errorf("not called yet: %s", text)
		}
		return nil
	})
	require.NoError(t, conn.Close())
	remotetest.Eventually(t, func() error {
		if text := stats(); !strings.Contains(text, `"runs":1,"run_errors":1`) {
			return fmt.Errorf("it still runs: %s", text)
		}
		return nil
	})
}

// Requests that wait for a change or a task end when the gateway starts to drain. Calls get the drain period.
func TestDrainEndsLongPolls(t *testing.T) {
	owner := remotetest.StartOwner(t, "--model", "m=4096")
	gw := remotetest.StartGateway(t, owner.Socket, "--drain", "10m", "--lame-duck", "2s")
	gw.Attached(t)
	var info struct {
		ServerID string `json:"server_id"`
	}
	_, text := gw.Get(t, "/v1/models/m/changes?version=7&wait=1s")
	require.NoError(t, json.Unmarshal(text, &info), "%s", text)
	task := result[map[string]any](t, gw, "submit_task", map[string]any{"name": "work", "args": []int{1000, 1000}})
	written := make(chan struct{}, 3)
	send := func(method, path, body string) <-chan string {
		answer := make(chan string, 1)
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { written <- struct{}{} }})
		r, err := http.NewRequestWithContext(ctx, method, gw.HTTP()+path, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		go func() {
			resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
			if err != nil {
				answer <- err.Error()
				return
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			answer <- resp.Status + " " + string(text)
		}()
		return answer
	}
	change := send(http.MethodGet, "/v1/models/m/changes?version=1&wait=2m&server="+info.ServerID, "")
	wait := send(http.MethodPost, "/jsonrpc", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"wait_task","params":[%q]}`, task["task_id"]))
	call := send(http.MethodPost, "/jsonrpc", `{"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"sleep","args":[4000]}}`)
	for range 3 {
		<-written
	}
	require.NoError(t, gw.Terminate())
	require.Contains(t, <-change, "204 No Content")
	require.Contains(t, <-wait, `"status":"running"`)
	require.Contains(t, <-call, `"result":{}`)
}

func errorOf(text []byte) *rpcError {
	var a rpcAnswer
	_ = json.Unmarshal(text, &a)
	return a.Error
}

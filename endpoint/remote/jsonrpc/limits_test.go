package jsonrpc_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// batchOf returns a batch of n calls with the same parameters.
func batchOf(n int, params string) string {
	calls := make([]string, n)
	for i := range calls {
		calls[i] = fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"call_function","params":%s}`, i, params)
	}
	return "[" + strings.Join(calls, ",") + "]"
}

// All requests of a batch share the limit of one request.
func TestBatchSharesTheLimitOfARequest(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, "--max-request", "4MiB")
	gw.Attached(t)
	for name, c := range map[string]struct {
		params  string
		most    int
		outcome bool
	}{
		"tensors": {`{"name":"zeros","args":[262144]}`, 4, false},
		"text":    {`{"name":"echo","args":["` + strings.Repeat("x", 1<<16) + `"]}`, 64, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, text := post(t, gw, batchOf(60, c.params))
			var list []rpcAnswer
			require.NoError(t, json.Unmarshal(text, &list), "%.200s", text)
			require.Len(t, list, 60)
			answered := 0
			for _, a := range list {
				if a.Error == nil {
					answered++
					continue
				}
				require.Equal(t, -32006, a.Error.Code, a.Error.Message)
			}
			require.LessOrEqual(t, answered, c.most)
			require.Positive(t, answered)
			require.Less(t, len(text), 8<<20)
		})
	}
	t.Run("the elements are counted before they are parsed", func(t *testing.T) {
		_, text := post(t, gw, "["+strings.Repeat("1,", 1<<20)+"1]")
		require.Contains(t, string(text), "a batch has 1 to 1000 requests")
	})
}

// A tensor that is encoded during sending is complete and unchanged, also next to other tensors and in a batch.
func TestLargeTensorsOfResultsAreComplete(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	_, text := post(t, gw, batchOf(3, `{"name":"zeros","args":[100001]}`))
	var list []struct {
		Result struct {
			Tensor struct {
				Shape []int
				Data  []byte // base64
			} `json:"$tensor"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &list), "%.200s", text)
	require.Len(t, list, 3)
	for _, one := range list {
		require.Equal(t, []int{100001}, one.Result.Tensor.Shape)
		require.True(t, bytes.Equal(make([]byte, 400004), one.Result.Tensor.Data))
	}
}

// The gateway closes a connection whose client does not read the answer.
func TestUnreadAnswersAreClosed(t *testing.T) {
	owner := remotetest.StartOwner(t, "--model", "m=33554432")
	gw := remotetest.StartGateway(t, owner.Socket, "--stall", "1s")
	gw.Attached(t)
	body := `{"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"zeros","args":[8388608]}}`
	for _, request := range []string{
		fmt.Sprintf("POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body),
		"GET /v1/models/m/model.safetensors HTTP/1.1\r\nHost: localhost\r\n\r\n",
	} {
		for range 3 {
			conn, err := net.Dial("tcp", gw.Addresses.HTTP)
			require.NoError(t, err)
			defer conn.Close()
			_, err = io.WriteString(conn, request)
			require.NoError(t, err)
			_, err = io.ReadFull(conn, make([]byte, 16)) // the answer has started
			require.NoError(t, err)
		}
	}
	remotetest.Eventually(t, func() error {
		var status struct {
			Gateway struct {
				Connections map[string]int
			}
		}
		_, text := gw.Get(t, "/v1/status")
		require.NoError(t, json.Unmarshal(text, &status))
		if open := status.Gateway.Connections["http"]; open > 2 { // connections of this test's client
			return fmt.Errorf("%d connections are open", open)
		}
		return nil
	})
}

// silentServer sends headers that announce n bytes, and then nothing until the test ends.
func silentServer(t *testing.T, n int) *httptest.Server {
	t.Helper()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/headers") {
			w.Header().Set("Content-Length", fmt.Sprint(n))
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	return server
}

// Fetching a tensor by URL fails if its server stops sending, and when the deadline of the call expires.
func TestSilentServerOfAURLEndsTheCall(t *testing.T) {
	const size = 4 << 20
	server := silentServer(t, size)
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, "--stall", "1s", "--fetch", server.URL+"/", "--max-model", "5MiB")
	gw.Attached(t)
	patient := remotetest.StartGateway(t, owner.Socket, "--stall", "10m", "--fetch", server.URL+"/")
	patient.Attached(t)
	argument := func(path string) map[string]any {
		return map[string]any{"$tensor": map[string]any{
			"dtype": "uint8", "shape": []int{size}, "url": server.URL + path, "sha256": digestOf(nil),
		}}
	}
	for _, path := range []string{"/headers", "/nothing"} {
		bad := failed(t, gw, "call_function", map[string]any{"name": "scale", "kwargs": map[string]any{"x": argument(path)}})
		require.Equal(t, -32008, bad.Code, bad.Message)
		require.Contains(t, bad.Message, "does not send")
		bad = failed(t, patient, "call_function", map[string]any{"name": "scale", "kwargs": map[string]any{"x": argument(path)}, "timeout": 0.5})
		require.Equal(t, -32008, bad.Code, bad.Message)
	}
	bad := failed(t, gw, "publish_from", map[string]string{"name": "m", "url": server.URL + "/headers", "sha256": digestOf(nil)})
	require.Contains(t, bad.Message, "does not send")
}

// Tensors by URL count towards the limit of models in transfer.
func TestTensorsByURLAreCharged(t *testing.T) {
	const size = 1 << 20
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(size))
		_, _ = w.Write(make([]byte, size))
	}))
	t.Cleanup(server.Close)
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, "--fetch", server.URL+"/", "--max-model", "2560KiB")
	gw.Attached(t)
	params := func(n int) map[string]any {
		list := make([]any, n)
		for i := range list {
			list[i] = map[string]any{"$tensor": map[string]any{
				"dtype": "uint8", "shape": []int{size}, "url": server.URL + "/", "sha256": digestOf(make([]byte, size)),
			}}
		}
		return map[string]any{"name": "echo", "args": []any{list}}
	}
	for range 2 { // the charge of the first call was released
		bad := failed(t, gw, "call_function", params(2))
		require.Equal(t, -32003, bad.Code, "they arrived, and echo takes a string: %s", bad.Message)
	}
	bad := failed(t, gw, "call_function", params(3))
	require.Equal(t, -32006, bad.Code, bad.Message)
}

// A request may be compressed. The limit is for the decompressed bytes.
func TestCompressedRequests(t *testing.T) {
	t.Parallel()
	gw := remotetest.StartGateway(t, "off", "--max-request", "64KiB")
	packed := func(text string) io.Reader {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := io.WriteString(w, text)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return &b
	}
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for body, want := range map[string]int{
		ping: http.StatusOK, strings.Repeat(" ", 128<<10) + ping: http.StatusRequestEntityTooLarge,
	} {
		resp, text := gw.Do(t, http.MethodPost, "/jsonrpc", packed(body), "Content-Type", "application/json", "Content-Encoding", "gzip")
		require.Equal(t, want, resp.StatusCode, "%s", text)
	}
	resp, text := gw.Do(t, http.MethodPost, "/jsonrpc", strings.NewReader(ping), "Content-Type", "application/json", "Content-Encoding", "br")
	require.Equal(t, http.StatusUnsupportedMediaType, resp.StatusCode, "%s", text)
	resp, _ = gw.Do(t, http.MethodPost, "/jsonrpc", strings.NewReader(ping), "Content-Type", "application/json", "Content-Encoding", "gzip")
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
}

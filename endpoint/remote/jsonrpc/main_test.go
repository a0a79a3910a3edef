package jsonrpc_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/jsonrpc"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
)

func TestMain(m *testing.M) {
	remotetest.Main(m, func() []gateway.Component {
		files := &models.Component{}
		return []gateway.Component{files, &jsonrpc.Component{Models: files}}
	})
}

// rpcAnswer is a JSON-RPC response.
type rpcAnswer struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result"`
	Error   *rpcError       `json:"error"`
}

type rpcError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// outcome returns the outcome of the call in the error's data.
func (e *rpcError) outcome() string {
	var data struct {
		Outcome string `json:"outcome"`
	}
	_ = json.Unmarshal(e.Data, &data)
	return data.Outcome
}

// post sends a body to /jsonrpc and returns the status and the answer.
func post(t testing.TB, gw *remotetest.Gateway, body string) (int, []byte) {
	t.Helper()
	resp, err := http.Post(gw.HTTP()+"/jsonrpc", "application/json", bytes.NewBufferString(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, text
}

// call makes one request and returns its answer.
func call(t testing.TB, gw *remotetest.Gateway, method string, params any) rpcAnswer {
	t.Helper()
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
	require.NoError(t, err)
	_, text := post(t, gw, string(body))
	var a rpcAnswer
	require.NoError(t, json.Unmarshal(text, &a), "%s", text)
	require.Equal(t, "2.0", a.JSONRPC)
	require.Equal(t, "7", string(a.ID))
	return a
}

// result returns the result of a request that must succeed.
func result[T any](t testing.TB, gw *remotetest.Gateway, method string, params any) (out T) {
	t.Helper()
	a := call(t, gw, method, params)
	require.Nil(t, a.Error, "%+v", a.Error)
	require.NoError(t, json.Unmarshal(a.Result, &out), "%s", a.Result)
	return out
}

// failed returns the error of a request that must fail.
func failed(t testing.TB, gw *remotetest.Gateway, method string, params any) *rpcError {
	t.Helper()
	a := call(t, gw, method, params)
	require.NotNil(t, a.Error, "%s", a.Result)
	return a.Error
}

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// A publication with a read-only token is refused before its first byte is sent.
func TestReadOnlyClientsAreRefusedBeforeTheirFirstByte(t *testing.T) {
	gw := remotetest.StartGateway(t, "off", withTokens(t)...)
	client := rawClient(t)
	for _, method := range []string{putMethod, "/kpu.torch.Service/ReceiveTensors"} {
		startCall(t, client, gw, method, readOnlyToken).requireStatus(t, codes.PermissionDenied)
	}

	ctx, cancel := context.WithTimeout(t.Context(), remotetest.Patience)
	defer cancel()
	body, unused := io.Pipe()
	defer unused.Close()
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, gw.HTTP()+"/v1/models/m/model.safetensors", body)
	require.NoError(t, err)
	request.ContentLength = 1 << 30
	request.Header.Set("Authorization", "Bearer "+readOnlyToken)
	response, err := http.DefaultTransport.RoundTrip(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusForbidden, response.StatusCode)
}

// A client may cancel only tasks that it submitted.
func TestCancelTaskOwnTasksOnly(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, withTokens(t)...)
	requireReady(t, gw)
	submit := func(token string) string {
		var out struct {
			Result struct {
				ID string `json:"task_id"`
			}
		}
		rpc(t, gw, token, "submit_task", `{"name":"sleep","args":[600000]}`, &out)
		require.NotEmpty(t, out.Result.ID)
		return out.Result.ID
	}
	cancel := func(token, id string) (code int) {
		var out struct {
			Error *struct {
				Code int `json:"code"`
			}
		}
		rpc(t, gw, token, "cancel_task", `{"task_id":"`+id+`"}`, &out)
		if out.Error == nil {
			return 0
		}
		return out.Error.Code
	}
	ofFull, ofReader := submit(fullToken), submit(readOnlyToken)
	require.Equal(t, -32007, cancel(readOnlyToken, ofFull))
	require.Equal(t, -32007, cancel(fullToken, ofReader))
	require.Zero(t, cancel(readOnlyToken, ofReader))
	require.Zero(t, cancel(fullToken, ofFull))
}

// rpc calls a JSON-RPC method.
func rpc(t *testing.T, gw *remotetest.Gateway, token, method, params string, into any) {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gw.HTTP()+"/jsonrpc", strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, into), "%s", text)
}

// Read-only clients that use up their quotas of leases and results leave room for other clients.
func TestLeasesAndResultsHaveQuotas(t *testing.T) {
	owner := remotetest.StartOwner(t, "--model", "m=4096")
	gw := remotetest.StartGateway(t, owner.Socket, withTokens(t, "--max-results", "1MiB")...)
	requireReady(t, gw)
	lease := func(token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gw.HTTP()+"/v1/models/m/leases?seconds=600", http.NoBody)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		return response.StatusCode
	}
	taken := 0
	for ; taken < 256 && lease(readOnlyToken) == http.StatusOK; taken++ {
	}
	require.Less(t, taken, 128)
	require.Equal(t, http.StatusTooManyRequests, lease(readOnlyToken))
	require.Equal(t, http.StatusOK, lease(fullToken))

	keep := func(token string) bool {
		var out struct{ Error any }
		rpc(t, gw, token, "call_function", `{"name":"identity","tensors":"url","kwargs":{"x":{"$tensor":{"dtype":"uint8","shape":[65536],"data":"`+
			base64.StdEncoding.EncodeToString(make([]byte, 64<<10))+`"}}}}`, &out)
		return out.Error == nil
	}
	kept := 0
	for ; kept < 16 && keep(readOnlyToken); kept++ {
	}
	require.Positive(t, kept)
	require.Less(t, kept, 8)
	require.True(t, keep(fullToken))
}

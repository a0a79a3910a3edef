package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute/computepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// The owner receives the W3C trace of requests in each protocol of the gateway. Client, gateway and owner are separate
// processes.
func TestTracesReachTheOwner(t *testing.T) {
	traces := filepath.Join(t.TempDir(), "traces")
	owner := remotetest.StartOwner(t, "--traces", traces)
	gw := remotetest.StartGateway(t, owner.Socket)
	remotetest.Eventually(t, func() error {
		resp, err := http.Get(gw.HTTP() + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return http.ErrServerClosed
		}
		return nil
	})
	const id, span = "4bf92f3577b34da6a3ce929d0e0e473", "00f067aa0ba902b7"
	parent := func(n string) string { return "00-" + id + n + "-" + span + "-01" }
	post := func(n, path, body string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gw.HTTP()+path, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("traceparent", parent(n))
		r.Header.Set("tracestate", "vendor=1")
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s", text)
		require.NotContains(t, string(text), `"error"`)
	}
	post("1", "/jsonrpc", `{"jsonrpc": "2.0", "id": 1, "method": "call_function", "params": {"name": "add", "args": [1, 2]}}`)
	post("2", "/v2/models/identity/infer", `{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}`)

	conn, err := grpc.NewClient(gw.Addresses.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(context.Background(), "traceparent", parent("3"), "tracestate", "vendor=1")
	_, err = computepb.NewComputeServiceClient(conn).Compute(ctx, &computepb.ComputeRequest{Shape: []int32{1}, Data: make([]byte, 4), ModelId: "linger"})
	require.NoError(t, err)

	text, err := os.ReadFile(traces)
	require.NoError(t, err)
	for function, n := range map[string]string{"add": "1", "identity": "2", "linger": "3"} {
		found := false
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 4 || f[0] != function {
				continue
			}
			found = true
			require.Equal(t, id+n, f[2], line)
			require.NotEqual(t, span, f[3], "the gateway has a span of its own")
			require.Equal(t, "vendor=1", f[4], line)
		}
		require.True(t, found, "%s in\n%s", function, text)
	}
}

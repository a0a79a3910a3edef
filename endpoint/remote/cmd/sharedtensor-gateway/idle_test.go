package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// Connections and streams on which nothing has to be sent outlast the stall time: idle connections, watches, events, open
// calls, and subscriptions.
func TestIdleConnectionsStay(t *testing.T) {
	t.Parallel()
	const idle = 5 * time.Second // for a stall time of two seconds
	authority := remotetest.NewAuthority(t)
	cert, key := authority.Issue(t, t.TempDir(), "gateway", time.Now().Add(time.Hour))
	owner := remotetest.StartOwner(t, "--model", "m=1024")
	gw := remotetest.StartGateway(t, owner.Socket, withTokens(t, "--stall", "2s", "--tls-cert", cert, "--tls-key", key, "--nats", "embedded", "--nats-listen", "127.0.0.1:0")...)
	config := authority.TLSConfig(t, "", "")
	clients := map[string]*http.Client{}
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		transport := &http.Transport{TLSClientConfig: config.Clone(), Protocols: new(http.Protocols)}
		transport.Protocols.SetHTTP1(!http2)
		transport.Protocols.SetHTTP2(http2)
		t.Cleanup(transport.CloseIdleConnections)
		clients[name] = &http.Client{Transport: transport}
	}
	send := func(t *testing.T, client *http.Client, method, path, body string) *http.Response {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, "https://"+gw.Addresses.HTTP+path, strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+fullToken)
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		require.NoError(t, err)
		t.Cleanup(func() { _ = response.Body.Close() })
		return response
	}
	read := func(t *testing.T, response *http.Response) string {
		t.Helper()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return string(text)
	}
	remotetest.Eventually(t, func() error {
		if response := send(t, clients["HTTP/2"], http.MethodGet, "/v1/models/m", ""); response.StatusCode != http.StatusOK {
			return fmt.Errorf("%d %s", response.StatusCode, read(t, response))
		}
		return nil
	})

	for name, client := range clients {
		t.Run(name+" connection", func(t *testing.T) {
			t.Parallel()
			read(t, send(t, client, http.MethodPost, "/jsonrpc", `{"jsonrpc":"2.0","id":1,"method":"list"}`))
			time.Sleep(idle)
			reused := false
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }})
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+gw.Addresses.HTTP+"/healthz", http.NoBody)
			require.NoError(t, err)
			response, err := client.Do(request)
			require.NoError(t, err)
			read(t, response)
			require.NoError(t, response.Body.Close())
			require.True(t, reused)
		})
		t.Run(name+" events", func(t *testing.T) {
			t.Parallel()
			events := bufio.NewScanner(send(t, client, http.MethodGet, "/v1/events", "").Body)
			for begin := time.Now(); time.Since(begin) < idle; {
				require.True(t, events.Scan(), "the end of the events: %v", events.Err())
			}
		})
		t.Run(name+" watch", func(t *testing.T) {
			t.Parallel()
			var now struct {
				Version  uint64 `json:"version"`
				ServerID string `json:"server_id"`
			}
			require.NoError(t, json.Unmarshal([]byte(read(t, send(t, client, http.MethodGet, "/v1/models/m/changes", ""))), &now))
			response := send(t, client, http.MethodGet, fmt.Sprintf("/v1/models/m/changes?server=%s&version=%d&wait=%v", now.ServerID, now.Version, idle), "")
			require.Equal(t, http.StatusNoContent, response.StatusCode, read(t, response))
		})
	}
	t.Run("gRPC", func(t *testing.T) {
		t.Parallel()
		conn, err := grpc.NewClient(gw.Addresses.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(config.Clone())))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+fullToken)
		watch, err := grpc_health_v1.NewHealthClient(conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
		_, err = watch.Recv()
		require.NoError(t, err)
		stream, err := inferencepb.NewGRPCInferenceServiceClient(conn).ModelStreamInfer(ctx)
		require.NoError(t, err)
		time.Sleep(idle)
		require.NoError(t, stream.Send(&inferencepb.ModelInferRequest{ModelName: "none"}))
		_, err = stream.Recv()
		require.NoError(t, err, "the answer to an unknown model")
		require.NoError(t, stream.CloseSend())
		ended := make(chan error, 1)
		go func() {
			_, err := watch.Recv()
			ended <- err
		}()
		select {
		case err := <-ended:
			require.NoError(t, err, "the watch")
		case <-time.After(time.Second):
		}
	})
	t.Run("NATS", func(t *testing.T) {
		t.Parallel()
		conn, err := natslink.Connect(gw.Addresses.NATS, nats.Token(fullToken), nats.Secure(config.Clone()), nats.PingInterval(time.Hour))
		require.NoError(t, err)
		t.Cleanup(conn.Close)
		sub, err := conn.SubscribeSync("idle")
		require.NoError(t, err)
		time.Sleep(idle)
		require.NoError(t, conn.Publish("idle", []byte("x")))
		_, err = sub.NextMsg(remotetest.Patience)
		require.NoError(t, err)
		require.Zero(t, conn.Statistics.Reconnects)
	})
}

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
	"github.com/sharedtensor/sharedtensor/module"
)

// When a token is removed from the file, its NATS connections and calls end, and new ones are refused. This also holds if
// the file was empty for a moment, which is no revocation.
func TestRevokedTokenEndsItsConnections(t *testing.T) {
	const other = "fedcba9876543210-next"
	for name, left := range map[string]string{"replaced": other + " other\n", "emptied": ""} {
		t.Run(name, func(t *testing.T) {
			tokens := filepath.Join(t.TempDir(), "tokens")
			require.NoError(t, os.WriteFile(tokens, []byte(fullToken+" full\n"), 0o600))
			gw := remotetest.StartGateway(t, "off", "--token-file", tokens, "--nats", "embedded", "--nats-listen", "127.0.0.1:0")

			closed := make(chan struct{})
			conn, err := nats.Connect(gw.Addresses.NATS, nats.Token(fullToken), nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
			require.NoError(t, err)
			defer conn.Close()
			call := startCall(t, rawClient(t), gw, streamInfer, fullToken)
			poll := make(chan struct{})
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, gw.HTTP()+"/v1/events", http.NoBody)
			require.NoError(t, err)
			request.Header.Set("Authorization", "Bearer "+fullToken)
			response, err := http.DefaultClient.Do(request)
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, response.StatusCode)
			go func() {
				defer close(poll)
				defer response.Body.Close()
				for buffer := make([]byte, 4096); ; {
					if _, err := response.Body.Read(buffer); err != nil {
						return
					}
				}
			}()

			require.NoError(t, os.WriteFile(tokens, []byte(left), 0o600))
			if left == "" {
				time.Sleep(1500 * time.Millisecond) // the gateway checks the file each second
				require.NoError(t, conn.Flush(), "the previous tokens are in use")
				left = other + " other\n"
				require.NoError(t, os.WriteFile(tokens, []byte(left), 0o600))
			}
			call.requireStatus(t, codes.Unauthenticated)
			for what, ended := range map[string]chan struct{}{"the NATS connection": closed, "the HTTP request": poll} {
				select {
				case <-ended:
				case <-time.After(remotetest.Patience):
					t.Fatalf("%s of a revoked token goes on", what)
				}
			}
			_, err = nats.Connect(gw.Addresses.NATS, nats.Token(fullToken), nats.NoReconnect())
			require.ErrorIs(t, err, nats.ErrAuthorization)
			startCall(t, rawClient(t), gw, streamInfer, fullToken).requireStatus(t, codes.Unauthenticated)
			conn, err = nats.Connect(gw.Addresses.NATS, nats.Token(other), nats.NoReconnect())
			require.NoError(t, err)
			conn.Close()
		})
	}
}

// --max-connections also limits the NATS listener.
func TestNATSConnectionsAreBounded(t *testing.T) {
	gw := remotetest.StartGateway(t, "off", withTokens(t, "--nats", "embedded", "--nats-listen", "127.0.0.1:0", "--max-connections", "8")...)
	open := 0
	for range 64 {
		conn, err := nats.Connect(gw.Addresses.NATS, nats.Token(fullToken), nats.NoReconnect())
		if err != nil {
			break
		}
		defer conn.Close()
		open++
	}
	require.GreaterOrEqual(t, open, 8)
	require.Less(t, open, 16)
}

// Model names that could be interpreted as paths to other directories cannot be published.
func TestModelNamesAreChecked(t *testing.T) {
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, withTokens(t)...)
	requireReady(t, gw)
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 1, Bytes: 4096, Seed: 1})
	require.NoError(t, err)
	defer sd.Close()
	conn, err := grpc.NewClient(gw.Addresses.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	client := stream.NewClient(conn, stream.ClientOptions{Device: driver.Device(dev)})
	ctx := metadata.AppendToOutgoingContext(context.WithoutCancel(t.Context()), "authorization", "Bearer "+fullToken)
	head := safetensorsHead(1)
	for _, name := range []string{".", "..", "../../etc", "a/../b", "a/."} {
		at := fmt.Sprintf("%s/v1/models/%s/model.safetensors", gw.HTTP(), strings.ReplaceAll(url.PathEscape(name), ".", "%2E"))
		request, err := http.NewRequestWithContext(ctx, http.MethodPut, at, strings.NewReader(string(head)+"x"))
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+fullToken)
		requireAnswer(t, request, http.StatusBadRequest)

		_, err = client.Put(ctx, &stream.Set{Name: name, Tensors: sd})
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", name, err)
	}
	_, err = client.Put(ctx, &stream.Set{Name: "a..b/c", Tensors: sd})
	require.NoError(t, err)
}

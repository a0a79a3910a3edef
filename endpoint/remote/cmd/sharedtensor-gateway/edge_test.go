package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// requireClosed fails unless the gateway ends a connection to which the client has written something and nothing more.
func requireClosed(t *testing.T, address, sent string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, sent)
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(12*time.Second)))
	_, err = io.Copy(io.Discard, conn)
	var late net.Error
	require.False(t, err != nil && errorsAsTimeout(err, &late), "still open: %.60q", sent)
}

func errorsAsTimeout(err error, late *net.Error) bool {
	one, is := err.(net.Error) //nolint:errorlint // of net.Conn
	*late = one
	return is && one.Timeout()
}

// h2Frame returns a frame of HTTP/2.
func h2Frame(kind, flags byte, id uint32, payload string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	return string(binary.BigEndian.AppendUint32(append(b, flags), id)) + payload
}

const h2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// The gateway closes connections whose body, headers or frame do not end within the stall time, with and without a token.
func TestUnfinishedRequestsEnd(t *testing.T) {
	t.Parallel()
	gw := remotetest.StartGateway(t, "off", withTokens(t, "--stall", "1s")...)
	address := gw.HTTP()[len("http://"):]
	settings := h2Preface + h2Frame(4, 0, 0, "")
	for _, token := range []string{"", fullToken, readOnlyToken} {
		for _, path := range []string{"GET /healthz", "GET /readyz", "POST /jsonrpc", "POST /v2/models/m/infer", "POST /v1/models/m/leases", "PUT /v1/models/m/model.safetensors", "POST /none"} {
			t.Run(fmt.Sprintf("%s by %q", path, token), func(t *testing.T) {
				t.Parallel()
				requireClosed(t, address, path+" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAuthorization: Bearer "+token+"\r\nContent-Length: 100\r\n\r\n")
			})
		}
	}
	for name, sent := range map[string]string{
		"headers":      settings + h2Frame(1, 0, 1, "\x83"),
		"continuation": settings + h2Frame(1, 0, 1, "\x83") + h2Frame(9, 0, 1, "\x86"),
		"frame":        settings + h2Frame(1, 4, 1, "a long header block")[:14],
		"preface":      h2Preface[:10],
		"nothing":      "",
	} {
		t.Run("gRPC "+name, func(t *testing.T) {
			t.Parallel()
			requireClosed(t, gw.Addresses.GRPC, sent)
		})
	}
}

// Probes are answered while unknown clients of another address hold as many calls as they can. A watch needs an identity.
func TestProbesAreAnsweredDuringAttacks(t *testing.T) {
	t.Parallel()
	gw := remotetest.StartGateway(t, "off", withTokens(t)...)
	watch := startCall(t, rawClient(t), gw, "/grpc.health.v1.Health/Watch", "")
	watch.claim(0)
	watch.requireStatus(t, codes.Unauthenticated)
	for range 8 {
		client := rawClientFrom(t, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)})
		for range 100 {
			startCall(t, client, gw, "/grpc.health.v1.Health/Check", "")
		}
	}
	for range 10 {
		begin := time.Now()
		for _, path := range []string{"/healthz", "/readyz"} {
			response, err := http.Get(gw.HTTP() + path)
			require.NoError(t, err)
			text, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			_ = response.Body.Close()
			require.NotEqual(t, http.StatusTooManyRequests, response.StatusCode)
			require.NotContains(t, string(text), "/", "a path")
		}
		check := startCall(t, rawClient(t), gw, "/grpc.health.v1.Health/Check", "")
		check.claim(0)
		_ = check.body.Close()
		check.requireStatus(t, codes.OK)
		require.Less(t, time.Since(begin), remotetest.Patience)
		time.Sleep(50 * time.Millisecond)
	}
}

package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// unfinished holds connections by what their clients have sent, and nothing more.
type unfinished map[string]net.Conn

// add writes to a connection.
func (u unfinished) add(t *testing.T, name string, conn net.Conn, sent string) {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	_, err := io.WriteString(conn, sent)
	require.NoError(t, err)
	u[name] = conn
}

// dial adds a connection without TLS.
func (u unfinished) dial(t *testing.T, name, address, sent string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	u.add(t, name, conn, sent)
}

// requireClosed fails unless the peer ends all connections.
func (u unfinished) requireClosed(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(remotetest.Patience)
	for name, conn := range u {
		require.NoError(t, conn.SetReadDeadline(deadline))
		_, err := io.Copy(io.Discard, conn)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "still open: %s", name)
	}
}

// h2Frame returns a frame of HTTP/2.
func h2Frame(kind, flags byte, id uint32, payload string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	return string(binary.BigEndian.AppendUint32(append(b, flags), id)) + payload
}

const h2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// h2Settings is the beginning of a connection of HTTP/2.
var h2Settings = h2Preface + h2Frame(4, 0, 0, "")

// The gateway closes connections whose body, headers or frame do not end within the stall time, with and without a token.
func TestUnfinishedRequestsEnd(t *testing.T) {
	t.Parallel()
	gw := remotetest.StartGateway(t, "off", withTokens(t, "--stall", "1s")...)
	address := gw.HTTP()[len("http://"):]
	all := unfinished{}
	for _, token := range []string{"", fullToken, readOnlyToken} {
		for _, path := range []string{"GET /healthz", "GET /readyz", "POST /jsonrpc", "POST /v2/models/m/infer", "POST /v1/models/m/leases", "PUT /v1/models/m/model.safetensors", "POST /none"} {
			all.dial(t, fmt.Sprintf("%s by %q", path, token), address, path+" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAuthorization: Bearer "+token+"\r\nContent-Length: 100\r\n\r\n")
		}
	}
	for name, sent := range unfinishedFrames {
		all.dial(t, "gRPC "+name, gw.Addresses.GRPC, sent)
	}
	all.dial(t, "HTTP headers", address, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ")
	all.dial(t, "HTTP nothing", address, "")
	all.requireClosed(t)
}

// unfinishedFrames are the beginnings of a connection of HTTP/2.
var unfinishedFrames = map[string]string{
	"headers":      h2Settings + h2Frame(1, 0, 1, "\x83"),
	"continuation": h2Settings + h2Frame(1, 0, 1, "\x83") + h2Frame(9, 0, 1, "\x86"),
	"frame":        h2Settings + h2Frame(1, 4, 1, "a long header block")[:14],
	"preface":      h2Preface[:10],
	"nothing":      "",
}

// The same over TLS, where one port serves both versions of HTTP.
func TestUnfinishedRequestsEndOverTLS(t *testing.T) {
	t.Parallel()
	authority := remotetest.NewAuthority(t)
	cert, key := authority.Issue(t, t.TempDir(), "gateway", time.Now().Add(time.Hour))
	gw := remotetest.StartGateway(t, "off", withTokens(t, "--stall", "1s", "--tls-cert", cert, "--tls-key", key)...)
	all := unfinished{}
	all.dial(t, "HTTP handshake", gw.Addresses.HTTP, "")
	all.dial(t, "gRPC handshake", gw.Addresses.GRPC, "\x16\x03\x01")
	secured := func(address, protocol string) net.Conn {
		config := authority.TLSConfig(t, "", "").Clone()
		config.NextProtos = []string{protocol}
		conn, err := tls.Dial("tcp", address, config)
		require.NoError(t, err)
		require.Equal(t, protocol, conn.ConnectionState().NegotiatedProtocol)
		return conn
	}
	all.add(t, "HTTP/1.1 body", secured(gw.Addresses.HTTP, "http/1.1"), "POST /v2/repository/index HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "+fullToken+"\r\nContent-Length: 100\r\n\r\n")
	for name, sent := range unfinishedFrames {
		all.add(t, "HTTP/2 "+name, secured(gw.Addresses.HTTP, "h2"), sent)
		all.add(t, "gRPC "+name, secured(gw.Addresses.GRPC, "h2"), sent)
	}
	all.requireClosed(t)
	// The connection of these requests lives: only the stream waits.
	for _, path := range []string{"POST /jsonrpc", "POST /v2/models/m/infer", "POST /v2/repository/index", "PUT /v1/models/m/model.safetensors"} {
		t.Run("HTTP/2 body of "+path, func(t *testing.T) {
			t.Parallel()
			transport := &http.Transport{TLSClientConfig: authority.TLSConfig(t, "", ""), ForceAttemptHTTP2: true}
			t.Cleanup(transport.CloseIdleConnections)
			ctx, cancel := context.WithTimeout(t.Context(), remotetest.Patience)
			defer cancel()
			body, _ := io.Pipe()
			method, route, _ := strings.Cut(path, " ")
			request, err := http.NewRequestWithContext(ctx, method, "https://"+gw.Addresses.HTTP+route, body)
			require.NoError(t, err)
			request.ContentLength = 1000
			request.Header.Set("Authorization", "Bearer "+fullToken)
			request.Header.Set("Content-Type", "application/json")
			response, err := transport.RoundTrip(request)
			if err == nil {
				require.Equal(t, 2, response.ProtoMajor)
				require.NoError(t, response.Body.Close())
			}
			require.NoError(t, ctx.Err(), "the request waits for its body")
		})
	}
}

// NATS clients that do not authenticate, do not finish what they have begun, or do not read are disconnected.
func TestUnfinishedNATSClientsEnd(t *testing.T) {
	t.Parallel()
	gw := remotetest.StartGateway(t, "off", withTokens(t, "--stall", "1s", "--nats", "embedded", "--nats-listen", "127.0.0.1:0")...)
	server, err := url.Parse(gw.Addresses.NATS)
	require.NoError(t, err)
	connect := `CONNECT {"verbose":false,"headers":true,"auth_token":"` + fullToken + `"}` + "\r\n"
	all := unfinished{}
	for name, sent := range map[string]string{
		"nothing":   "",
		"connect":   connect[:20],
		"payload":   connect + "PUB a 100000\r\nabc",
		"headers":   connect + "HPUB a 1000 1000\r\nNATS/1.0\r\nA: ",
		"line":      connect + "PUB a",
		"no answer": connect,
		"read-only": strings.Replace(connect, fullToken, readOnlyToken, 1),
	} {
		all.dial(t, name, server.Host, sent)
	}
	all.requireClosed(t)
	conn, err := natslink.Connect(gw.Addresses.NATS, nats.Token(fullToken))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	before := remotetest.OpenFiles(t, gw.PID())
	var unread []net.Conn
	for range 4 {
		one, err := net.Dial("tcp", server.Host)
		require.NoError(t, err)
		t.Cleanup(func() { _ = one.Close() })
		require.NoError(t, one.(*net.TCPConn).SetReadBuffer(16<<10))
		_, err = io.WriteString(one, connect+"SUB unread 1\r\nPING\r\n")
		require.NoError(t, err)
		unread = append(unread, one)
	}
	remotetest.Eventually(t, func() error {
		if n := remotetest.OpenFiles(t, gw.PID()); n != before+len(unread) {
			return fmt.Errorf("%d descriptors, %d before", n, before)
		}
		return nil
	})
	for range 20 { // more than the kernel buffers, and less than the server's limit of pending bytes
		require.NoError(t, conn.Publish("unread", make([]byte, 1<<20-1)))
	}
	require.NoError(t, conn.FlushTimeout(remotetest.Patience))
	remotetest.Eventually(t, func() error {
		if n := remotetest.OpenFiles(t, gw.PID()); n > before {
			return fmt.Errorf("%d descriptors, %d before", n, before)
		}
		return nil
	})
	require.True(t, conn.IsConnected(), "a client that reads")
}

// The server of a mirror for its peers ends connections that make no progress.
func TestUnfinishedPeersEnd(t *testing.T) {
	t.Parallel()
	peers := mirrorPeers{listen: "127.0.0.1:0", stall: time.Second}
	require.NoError(t, peers.bind())
	wrote := make(chan error, 1)
	peers.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			return
		}
		_, err := w.Write(make([]byte, 64<<20))
		wrote <- err
	}), "")
	t.Cleanup(peers.close)
	address := peers.listener.Addr().String()
	path := strings.NewReplacer("{model}", "m", "{tensor}", "t").Replace(strings.TrimPrefix(mirror.PeersPattern, "GET "))
	all := unfinished{}
	for name, sent := range map[string]string{
		"nothing": "",
		"headers": "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ",
		"body":    "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n",
	} {
		all.dial(t, name, address, sent)
	}
	all.requireClosed(t)
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	require.NoError(t, err)
	select {
	case err := <-wrote:
		require.Error(t, err)
	case <-time.After(remotetest.Patience):
		t.Fatal("the answer waits for a peer that does not read")
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

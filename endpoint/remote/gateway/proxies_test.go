package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

const proxyToken = "0123456789abcdef0123456789abcdef0123456789abcdef"

// behindProxies starts a gateway with one token and returns the path of its access log.
func behindProxies(t *testing.T, args ...string) (gw *remotetest.Gateway, access string) {
	t.Helper()
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens")
	access = filepath.Join(dir, "access.jsonl")
	require.NoError(t, os.WriteFile(tokens, []byte(proxyToken+" client\n"), 0o600))
	return remotetest.StartGateway(t, gateway.Off, append([]string{"--token-file", tokens, "--access-log", access}, args...)...), access
}

// remoteOf returns the remote address of the request with a correlation id in the access log.
func remoteOf(t *testing.T, access, id string) (remote string) {
	t.Helper()
	remotetest.Eventually(t, func() error {
		text, err := os.ReadFile(access)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			var entry struct {
				Remote string `json:"remote"`
				ID     string `json:"correlation_id"`
			}
			if json.Unmarshal([]byte(line), &entry) == nil && entry.ID == id {
				remote = entry.Remote
				return nil
			}
		}
		return fmt.Errorf("request %s is not in the log:\n%s", id, text)
	})
	return remote
}

// dialFrom returns a function that connects from an address of this host, begins with a header, and reports the local address.
func dialFrom(from, header string, local *string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		*local = conn.LocalAddr().String()
		if _, err := conn.Write([]byte(header)); err != nil {
			return nil, err
		}
		return conn, nil
	}
}

// A request of a listed proxy has the address of its client, over HTTP and gRPC. The header of another address is not one, and a
// proxy without a header gets no answer. X-Forwarded-For has no effect on either.
func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	gw, access := behindProxies(t, "--proxy-protocol", "127.0.0.1,10.0.0.0/8")
	const header = "PROXY TCP4 203.0.113.7 192.0.2.1 56324 443\r\n"
	for i, row := range []struct{ from, header, remote string }{
		{"127.0.0.1", header, "203.0.113.7:56324"},
		{"127.0.0.1", "PROXY UNKNOWN\r\n", "itself"},
		{"127.0.0.1", "", ""},
		{"127.0.0.1", "PROXY TCP4 203.0.113.7\r\n", ""},
		{"127.0.0.2", "", "itself"},
		{"127.0.0.2", header, ""},
	} {
		t.Run(fmt.Sprintf("%s %q", row.from, row.header), func(t *testing.T) {
			local, id := "", fmt.Sprintf("http-%d", i)
			raw, err := dialFrom(row.from, row.header, &local)(t.Context(), "tcp", gw.Addresses.HTTP)
			require.NoError(t, err)
			_, _ = fmt.Fprintf(raw, "GET /v1/status HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer %s\r\nX-Correlation-Id: %s\r\nX-Forwarded-For: 198.51.100.1\r\nConnection: close\r\n\r\n",
				proxyToken, id) // fails if the gateway has closed the connection
			answer, _ := io.ReadAll(raw) // fails if the gateway has not read all
			require.NoError(t, raw.Close())
			want := row.remote
			if want == "itself" {
				want = local
			}
			if want == "" {
				require.True(t, len(answer) == 0 || strings.HasPrefix(string(answer), "HTTP/1.1 400 "), "%s", answer)
			} else {
				require.Contains(t, string(answer), "HTTP/1.1 200 ")
				require.Equal(t, want, remoteOf(t, access, id))
			}

			conn, err := grpc.NewClient("passthrough:"+gw.Addresses.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
					return dialFrom(row.from, row.header, &local)(ctx, "tcp", address)
				}))
			require.NoError(t, err)
			defer conn.Close()
			id = fmt.Sprintf("grpc-%d", i)
			ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+proxyToken, "x-correlation-id", id, "x-forwarded-for", "198.51.100.1")
			stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
			if err == nil {
				_ = stream.CloseSend() // best effort: the stream may have ended
				_, err = stream.Recv()
			}
			if row.remote == "" {
				require.ErrorContains(t, err, "Unavailable")
				return
			}
			if want = row.remote; want == "itself" {
				want = local
			}
			require.Equal(t, want, remoteOf(t, access, id))
		})
	}
	text, err := os.ReadFile(access)
	require.NoError(t, err)
	require.NotContains(t, string(text), "198.51.100.1")
	local := ""
	client := &http.Client{Transport: &http.Transport{DialContext: dialFrom("127.0.0.2", "", &local)}}
	_, metrics, _ := get(t, client, gw.HTTP()+"/metrics", "Authorization", "Bearer "+proxyToken)
	require.Contains(t, metrics, `sharedtensor_gateway_proxy_header_errors_total{listener="http"} 2`+"\n")
}

// The address that a listed proxy has added to X-Forwarded-For is that of the client. Addresses that the client has sent, and the
// header of another address, have no effect.
func TestForwardedFor(t *testing.T) {
	t.Parallel()
	gw, access := behindProxies(t, "--forwarded-for", "127.0.0.1, 10.0.0.0/8,2001:db8::/32")
	for i, row := range []struct {
		from   string
		header []string
		remote string // empty for the connection's
	}{
		{"127.0.0.1", nil, ""},
		{"127.0.0.1", []string{""}, ""},
		{"127.0.0.1", []string{"203.0.113.7"}, "203.0.113.7"},
		{"127.0.0.1", []string{"203.0.113.7:1234"}, "203.0.113.7"},
		{"127.0.0.1", []string{"::ffff:203.0.113.7"}, "203.0.113.7"},
		{"127.0.0.1", []string{"2001:db9::7"}, "2001:db9::7"},
		{"127.0.0.1", []string{"[2001:db9::7]:80"}, "2001:db9::7"},
		{"127.0.0.1", []string{"198.51.100.1, 203.0.113.7"}, "203.0.113.7"},
		{"127.0.0.1", []string{"198.51.100.1", "203.0.113.7"}, "203.0.113.7"},
		{"127.0.0.1", []string{"198.51.100.1, 203.0.113.7, 10.1.2.3"}, "203.0.113.7"},
		{"127.0.0.1", []string{"203.0.113.7, 2001:db8::1,10.1.2.3"}, "203.0.113.7"},
		{"127.0.0.1", []string{"10.1.2.3, 10.1.2.4"}, "10.1.2.3"},
		{"127.0.0.1", []string{"203.0.113.7, nonsense, 10.1.2.3"}, "10.1.2.3"},
		{"127.0.0.1", []string{"203.0.113.7, nonsense"}, ""},
		{"127.0.0.1", []string{"203.0.113.7,"}, ""},
		{"127.0.0.2", []string{"203.0.113.7"}, ""},
		{"127.0.0.2", []string{"127.0.0.1"}, ""},
	} {
		local, id := "", fmt.Sprintf("request-%d", i)
		client := &http.Client{Transport: &http.Transport{DialContext: dialFrom(row.from, "", &local), DisableKeepAlives: true}}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, gw.HTTP()+"/v1/status", nil)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+proxyToken)
		request.Header.Set("X-Correlation-Id", id)
		request.Header["X-Forwarded-For"] = row.header
		response, err := client.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode)
		want := row.remote
		if want == "" {
			want = local
		}
		require.Equal(t, want, remoteOf(t, access, id), "%v of %s", row.header, row.from)
	}
}

// A gateway without identities admits processes of its user. Clients of proxies have no known user, so it needs identities.
func TestProxiesNeedIdentities(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--proxy-protocol", "--forwarded-for"} {
		require.Contains(t, remotetest.RefusedGateway(t, flag, "127.0.0.1"), flag+": the users of clients behind a proxy are unknown")
		require.Contains(t, remotetest.RefusedGateway(t, flag, "proxy.example.org", "--insecure"), flag+`: "proxy.example.org" is neither an address`)
	}
}

// With --admin, only its listener serves metrics, health and pprof, and nothing else.
func TestAdminListener(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tokens, policy := filepath.Join(dir, "tokens"), filepath.Join(dir, "policy.yaml")
	names := []string{"admin", "prometheus", "nothing"}
	var lines strings.Builder
	for i, name := range names {
		fmt.Fprintf(&lines, "%d%s %s\n", i, proxyToken, name)
	}
	require.NoError(t, os.WriteFile(tokens, []byte(lines.String()), 0o600))
	require.NoError(t, os.WriteFile(policy, []byte("rules:\n  - {tokens: [admin], control: true, metrics: true}\n  - {tokens: [prometheus], metrics: true}\n  - {tokens: [nothing], list: [\"*\"]}\n"), 0o600))
	gw := remotetest.StartGateway(t, gateway.Off, "--token-file", tokens, "--policy", policy, "--admin", "127.0.0.1:0")
	const all, none = "200 200 200 200", "404 404 404 404"
	for path, want := range map[string]struct{ admin, public string }{ // of the three tokens and of a client without
		"/healthz": {all, none}, "/health": {all, none},
		"/readyz":              {all, none},
		"/metrics":             {"200 200 403 401", "404 404 404 401"},
		"/debug/pprof/":        {"200 403 403 401", "404 404 404 401"},
		"/debug/pprof/cmdline": {"200 403 403 401", "404 404 404 401"},
		"/debug/pprof/heap":    {"200 403 403 401", "404 404 404 401"},
		"/debug/pprof/symbol":  {"200 403 403 401", "404 404 404 401"},
		"/":                    {"404 404 404 401", ""},
		"/jsonrpc":             {"404 404 404 401", ""},
		"/v1/status":           {"404 404 404 401", ""},
	} {
		for address, want := range map[string]string{gw.Addresses.Admin: want.admin, gw.Addresses.HTTP: want.public} {
			if want == "" {
				continue
			}
			var got []string
			for i := range len(names) + 1 {
				var fields []string
				if i < len(names) {
					fields = []string{"Authorization", fmt.Sprintf("Bearer %d%s", i, proxyToken)}
				}
				status, _, _ := get(t, http.DefaultClient, "http://"+address+path, fields...)
				got = append(got, fmt.Sprint(status))
			}
			require.Equal(t, want, strings.Join(got, " "), "%s at %s", path, address)
		}
	}
	_, metrics, _ := get(t, http.DefaultClient, "http://"+gw.Addresses.Admin+"/metrics", "Authorization", "Bearer 0"+proxyToken)
	for _, line := range []string{`connections_stalled_total{listener="http"} 0`, `connection_states{listener="admin",state="active"} [1-9]`, `connection_states{listener="grpc",state="identified"} 0`} {
		require.Regexp(t, "(?m)^sharedtensor_gateway_"+line, metrics)
	}
}

// The rules of the public listeners apply to --admin: without identities, it admits only processes of the gateway's user, and
// other hosts may reach it only with TLS and identities.
func TestAdminListenerWithoutIdentities(t *testing.T) {
	t.Parallel()
	require.Contains(t, remotetest.RefusedGateway(t, "--admin", "0.0.0.0:0"), "--admin: 0.0.0.0:0 can be reached from other hosts")
	gw := remotetest.StartGateway(t, gateway.Off, "--admin", "127.0.0.1:0", "--http", gateway.Off)
	open := remotetest.StartGateway(t, gateway.Off, "--admin", "127.0.0.1:0", "--insecure", "--forwarded-for", "127.0.0.1")
	for path, forwarded := range map[string]int{"/healthz": http.StatusOK, "/metrics": http.StatusOK, "/debug/pprof/cmdline": http.StatusUnauthorized} {
		status, _, _ := get(t, http.DefaultClient, "http://"+open.Addresses.Admin+path)
		require.Equal(t, http.StatusOK, status)
		status, _, _ = get(t, http.DefaultClient, "http://"+open.Addresses.Admin+path, "X-Forwarded-For", "203.0.113.7")
		require.Equal(t, forwarded, status, path)
	}
	for _, path := range []string{"/healthz", "/metrics", "/debug/pprof/cmdline"} {
		status, body, _ := get(t, http.DefaultClient, "http://"+gw.Addresses.Admin+path)
		require.Equal(t, http.StatusOK, status, body)
		status, _, _ = get(t, http.DefaultClient, "http://"+gw.Addresses.Admin+path, "Host", "rebound.example.org")
		require.Equal(t, http.StatusForbidden, status)
	}
}

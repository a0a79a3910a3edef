package gateway_test

import (
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

const (
	goodToken = "0123456789abcdef-good"
	roToken   = "0123456789abcdef-look"
)

func writeTokens(t *testing.T, path string, lines ...string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
}

// A gateway with listeners beyond loopback does not start without TLS and identity.
func TestExposedListenersNeedIdentity(t *testing.T) {
	a := remotetest.NewAuthority(t)
	cert, key := a.Issue(t, t.TempDir(), "gateway", time.Now().Add(time.Hour))
	tokens := filepath.Join(t.TempDir(), "tokens")
	writeTokens(t, tokens, goodToken)
	withTLS := []string{"--tls-cert", cert, "--tls-key", key}
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"http":             {[]string{"--http", "0.0.0.0:0"}, "--http: 0.0.0.0:0 can be reached from other hosts: set --tls-cert"},
		"grpc":             {[]string{"--grpc", ":0"}, "--grpc: :0 can be reached"},
		"nats":             {[]string{"--nats", "embedded", "--nats-listen", "[::]:0"}, "--nats-listen: [::]:0 can be reached"},
		"a name":           {[]string{"--http", "some.host:0"}, "can be reached from other hosts"},
		"only TLS":         {append([]string{"--http", "0.0.0.0:0"}, withTLS...), "set --token-file or --client-ca"},
		"only tokens":      {[]string{"--http", "0.0.0.0:0", "--token-file", tokens}, "set --tls-cert"},
		"pprof":            {[]string{"--debug", "0.0.0.0:0", "--insecure"}, "pprof"},
		"a key alone":      {[]string{"--tls-key", key}, "belong together"},
		"a client CA":      {[]string{"--client-ca", a.File}, "client certificates need TLS"},
		"no token":         {[]string{"--token-file", os.DevNull}, "holds no token"},
		"nobody's cluster": {[]string{"--nats", "somewhere"}, "neither embedded, off nor a URL"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, remotetest.RefusedGateway(t, c.args...), c.says)
		})
	}
	t.Run("insecure", func(t *testing.T) {
		gw := remotetest.StartGateway(t, gateway.Off, "--http", "0.0.0.0:0", "--insecure")
		remotetest.Eventually(t, func() error { // output of a process arrives asynchronously
			if !strings.Contains(gw.Log(), "--insecure") {
				return errText(gw.Log())
			}
			return nil
		})
		_, body, _ := get(t, http.DefaultClient, "http://127.0.0.1:"+port(gw.Addresses.HTTP)+"/v1/status")
		require.Contains(t, body, `"insecure":true`)
	})
}

func port(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

func TestTokens(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	writeTokens(t, tokens, "# who may", goodToken+" alice", roToken+" bob read-only")
	gw := remotetest.StartGateway(t, gateway.Off, "--token-file", tokens, "--nats", "embedded", "--nats-listen", "127.0.0.1:0")
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:"+goodToken))
	for name, c := range map[string]struct {
		authorization string
		status        int
	}{
		"none":      {"", http.StatusUnauthorized},
		"wrong":     {"Bearer " + goodToken + "x", http.StatusUnauthorized},
		"no scheme": {goodToken, http.StatusUnauthorized},
		"bearer":    {"Bearer " + goodToken, http.StatusOK},
		"lower":     {"bearer " + roToken, http.StatusOK},
		"browser":   {basic, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			status, body, header := get(t, http.DefaultClient, gw.HTTP()+"/v1/status", "Authorization", c.authorization)
			require.Equal(t, c.status, status, body)
			if status == http.StatusUnauthorized {
				require.Contains(t, header.Get("WWW-Authenticate"), "Basic")
				require.NotContains(t, body, goodToken)
			}
		})
	}
	t.Run("health needs none", func(t *testing.T) {
		status, _, _ := get(t, http.DefaultClient, gw.HTTP()+"/healthz")
		require.Equal(t, http.StatusOK, status)
	})
	t.Run("grpc", func(t *testing.T) {
		conn := dialGRPC(t, gw)
		_, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err, "health needs none")
		require.Equal(t, codes.Unauthenticated, status.Code(reflect(t, conn, "")))
		require.Equal(t, codes.Unauthenticated, status.Code(reflect(t, conn, "Bearer nope")))
		require.NoError(t, reflect(t, conn, "Bearer "+goodToken))
	})
	t.Run("nats", func(t *testing.T) {
		for token, good := range map[string]bool{"": false, goodToken + "x": false, roToken: false, goodToken: true} {
			conn, err := nats.Connect(gw.Addresses.NATS, nats.Token(token), nats.NoReconnect())
			require.Equal(t, good, err == nil, "token %q: %v", token, err)
			if err == nil {
				conn.Close()
			}
		}
	})
	t.Run("changed", func(t *testing.T) {
		writeTokens(t, tokens, "fedcba9876543210-next")
		remotetest.Eventually(t, func() error {
			if status, body, _ := get(t, http.DefaultClient, gw.HTTP()+"/v1/status", "Authorization", "Bearer fedcba9876543210-next"); status != http.StatusOK {
				return errText(body)
			}
			return nil
		})
		status, _, _ := get(t, http.DefaultClient, gw.HTTP()+"/v1/status", "Authorization", "Bearer "+goodToken)
		require.Equal(t, http.StatusUnauthorized, status, "a token that was taken out does not hold")
		writeTokens(t, tokens, "short")
		time.Sleep(1100 * time.Millisecond) // files are checked for changes once a second
		status, _, _ = get(t, http.DefaultClient, gw.HTTP()+"/v1/status", "Authorization", "Bearer fedcba9876543210-next")
		require.Equal(t, http.StatusOK, status, "a file that cannot be read changes nothing")
	})
}

type errText string

// Error returns the text.
func (e errText) Error() string { return string(e) }

func dialGRPC(t *testing.T, gw *remotetest.Gateway, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	if len(opts) == 0 {
		opts = append(opts, insecureCredentials)
	}
	conn, err := grpc.NewClient(gw.Addresses.GRPC, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// reflect lists the services by reflection, which requires identity.
func reflect(t *testing.T, conn *grpc.ClientConn, authorization string) error {
	t.Helper()
	ctx := t.Context()
	if authorization != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", authorization)
	}
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	require.NoError(t, err)
	_ = stream.Send(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{ListServices: "*"},
	}) // Recv returns the error
	answer, err := stream.Recv()
	if err == nil {
		require.Contains(t, answer.String(), "grpc.health.v1.Health")
	}
	return err
}

func TestCertificates(t *testing.T) {
	a, other := remotetest.NewAuthority(t), remotetest.NewAuthority(t)
	dir := t.TempDir()
	cert, key := a.Issue(t, dir, "gateway", time.Now().Add(time.Hour))
	goodCert, goodKey := a.Issue(t, t.TempDir(), "worker-7", time.Now().Add(time.Hour))
	oldCert, oldKey := a.Issue(t, t.TempDir(), "worker-8", time.Now().Add(-time.Hour))
	strangeCert, strangeKey := other.Issue(t, t.TempDir(), "worker-9", time.Now().Add(time.Hour))
	gw := remotetest.StartGateway(t, gateway.Off, "--tls-cert", cert, "--tls-key", key, "--client-ca", a.File)
	url := "https://" + gw.Addresses.HTTP

	status200, _, _ := get(t, a.Client(t, goodCert, goodKey), url+"/v1/status")
	require.Equal(t, http.StatusOK, status200)
	status401, _, _ := get(t, a.Client(t, "", ""), url+"/v1/status")
	require.Equal(t, http.StatusUnauthorized, status401)
	status200, _, _ = get(t, a.Client(t, "", ""), url+"/healthz")
	require.Equal(t, http.StatusOK, status200, "probes have no certificate")
	none, text, _ := get(t, a.Client(t, oldCert, oldKey), url+"/healthz")
	require.Zero(t, none, "an expired certificate ends the handshake")
	require.Contains(t, text, "expired")
	none, _, _ = get(t, a.Client(t, strangeCert, strangeKey), url+"/healthz")
	require.Zero(t, none, "and so does one of another authority")
	none, _, _ = get(t, other.Client(t, "", ""), url+"/healthz")
	require.Zero(t, none, "clients check the gateway's")

	conn := dialGRPC(t, gw, grpc.WithTransportCredentials(credentials.NewTLS(a.TLSConfig(t, goodCert, goodKey))))
	require.NoError(t, reflect(t, conn, ""))
	conn = dialGRPC(t, gw, grpc.WithTransportCredentials(credentials.NewTLS(a.TLSConfig(t, "", ""))))
	require.Equal(t, codes.Unauthenticated, status.Code(reflect(t, conn, "")))

	t.Run("renewed", func(t *testing.T) {
		a.Issue(t, dir, "renewed gateway", time.Now().Add(2*time.Hour))
		remotetest.Eventually(t, func() error {
			resp, err := a.Client(t, "", "").Get(url + "/healthz")
			if err != nil {
				return err
			}
			resp.Body.Close()
			if name := resp.TLS.PeerCertificates[0].Subject.CommonName; name != "renewed gateway" {
				return errText(name)
			}
			return nil
		})
	})
	t.Run("expired", func(t *testing.T) {
		cert, key := a.Issue(t, t.TempDir(), "gateway", time.Now().Add(-time.Minute))
		require.Contains(t, remotetest.RefusedGateway(t, "--tls-cert", cert, "--tls-key", key), "expired at")
	})
}

// A page of another site cannot use a gateway without identities.
func TestCrossSiteRequestsRefused(t *testing.T) {
	gw := remotetest.StartGateway(t, gateway.Off, "--allow-hosts", "gateway.test")
	for host, want := range map[string]int{
		"evil.example": http.StatusForbidden, "evil.example:80": http.StatusForbidden, "127.0.0.1.evil.example": http.StatusForbidden,
		"localhost": http.StatusOK, "[::1]:2537": http.StatusOK, "gateway.test": http.StatusOK,
	} {
		status, _, _ := get(t, http.DefaultClient, gw.HTTP()+"/v1/status", "Host", host)
		require.Equal(t, want, status, host)
	}
	r, err := http.NewRequest(http.MethodPost, gw.HTTP()+"/v1/status", nil)
	require.NoError(t, err)
	r.Header.Set("Origin", "http://evil.example")
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
}

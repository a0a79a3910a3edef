package main

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// A token goes to another host only with TLS or an option that allows it.
func TestTokensAreNotSentInPlaintext(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"send", "m.safetensors", "--to"}, {"receive", "m.safetensors", "--from"}} {
		_, errs, status := runProcess(t, append(args, "192.0.2.1:50051", "--token", fullToken)...)
		require.Equal(t, statusUsage, status, errs)
		require.Contains(t, errs, "use --tls")
	}
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte(fullToken+"\n"), 0o600))
	for servers, args := range map[string][]string{
		"nats://192.0.2.1:4222":                      {"--token-file", token},
		"192.0.2.1:4222":                             {"--token-file", token},
		"nats://127.0.0.1:1,nats://gpu7:4222":        {"--token-file", token},
		"tls://192.0.2.1:4222,nats://192.0.2.2:4222": {"--token-file", token},
		"nats://" + fullToken + "@192.0.2.1:4222":    nil,
		"nats://user:password@192.0.2.1:4222":        nil,
	} {
		_, errs, status := runProcess(t, append([]string{"bin", "ls", "--nats", servers}, args...)...)
		require.Equal(t, statusUsage, status, errs)
		require.Contains(t, errs, "without encryption")
		require.NotContains(t, errs, fullToken)
	}
	for servers, f := range map[string]natsFlags{
		"nats://192.0.2.1:4222":                    {},
		"nats://127.0.0.1:4222,localhost:4222":     {tokenFile: token},
		"tls://192.0.2.1:4222":                     {tokenFile: token},
		"nats://user:password@192.0.2.1:4222":      {plaintext: true},
		"nats://user:password@192.0.2.1:4222,a:1":  {tls: natslink.TLSFiles{CA: "ca.pem"}},
		"nats://user:password@[::1]:4222,gpu7:422": {},
	} {
		f.url = servers
		require.NoError(t, f.checkToken(), servers)
	}
	for address, want := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, "unix:/run/x": true, "gpu7:1": false, "10.0.0.1:1": false, "": false} {
		require.Equal(t, want, (&transfer{address: address}).loopback(), address)
	}
}

// Both ports offer HTTP/2 to clients with and without a certificate.
func TestClientCertificatesKeepHTTP2(t *testing.T) {
	t.Parallel()
	authority := remotetest.NewAuthority(t)
	cert, key := authority.Issue(t, t.TempDir(), "gateway", time.Now().Add(time.Hour))
	client, clientKey := authority.Issue(t, t.TempDir(), "client", time.Now().Add(time.Hour))
	gw := remotetest.StartGateway(t, "off", "--tls-cert", cert, "--tls-key", key, "--client-ca", authority.File)
	for _, config := range []*tls.Config{authority.TLSConfig(t, "", ""), authority.TLSConfig(t, client, clientKey)} {
		for _, address := range []string{gw.Addresses.HTTP, gw.Addresses.GRPC} {
			config := config.Clone()
			config.NextProtos = []string{"h2"}
			conn, err := tls.Dial("tcp", address, config)
			require.NoError(t, err)
			require.Equal(t, "h2", conn.ConnectionState().NegotiatedProtocol)
			require.NoError(t, conn.Close())
		}
	}
}

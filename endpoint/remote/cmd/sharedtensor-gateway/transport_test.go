package main

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// A token goes to another host only with TLS or an option that allows it.
func TestTokensAreNotSentInPlaintext(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"send", "m.safetensors", "--to"}, {"receive", "m.safetensors", "--from"}} {
		_, errs, status := runProcess(t, append(args, "192.0.2.1:50051", "--token", fullToken)...)
		require.Equal(t, statusUsage, status, errs)
		require.Contains(t, errs, "use --tls")
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

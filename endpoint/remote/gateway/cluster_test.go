package gateway_test

import (
	"crypto/tls"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// A gateway starts before its cluster, reports that it is not ready, and connects when the cluster serves: with the
// authority and the client certificate that the cluster requires.
func TestClusterStartsLateAndRequiresCertificates(t *testing.T) {
	t.Parallel()
	authority := remotetest.NewAuthority(t)
	serverCert, serverKey := authority.Issue(t, t.TempDir(), "nats", time.Now().Add(time.Hour))
	cert, key := authority.Issue(t, t.TempDir(), "gateway", time.Now().Add(time.Hour))
	address := remotetest.FreeAddress(t)
	gw := remotetest.StartGateway(t, "off", "--nats", "tls://"+address, "--nats-ca", authority.File, "--nats-cert", cert, "--nats-key", key)
	status, body, _ := get(t, http.DefaultClient, gw.HTTP()+"/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "no connection to the NATS server")

	config := authority.TLSConfig(t, serverCert, serverKey)
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, config.RootCAs
	server, err := natslink.Start(natslink.ServerOptions{Store: t.TempDir(), Listen: address, TLS: config})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	remotetest.Eventually(t, func() error {
		if status, body, _ := get(t, http.DefaultClient, gw.HTTP()+"/readyz"); status != http.StatusOK {
			return errors.New(body)
		}
		return nil
	})

	require.Contains(t, remotetest.RefusedGateway(t, "--nats", "tls://"+address, "--nats-cert", cert), "belong together")
	other := remotetest.StartGateway(t, "off", "--nats", "tls://"+address, "--nats-ca", authority.File)
	time.Sleep(time.Second) // it tries to connect several times
	status, body, _ = get(t, http.DefaultClient, other.HTTP()+"/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status, "without a client certificate: %s", body)
	require.False(t, strings.Contains(body, `"status":"ready"`))
}

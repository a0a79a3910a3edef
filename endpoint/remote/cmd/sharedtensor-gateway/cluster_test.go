package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// onServers runs a test with the flags of a gateway with an embedded NATS server, and of one that is a leaf node of a
// cluster.
func onServers(t *testing.T, run func(t *testing.T, flags []string)) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		run(t, []string{"--nats", "embedded", "--nats-listen", "127.0.0.1:0"})
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		run(t, clusterFlags(t, startCluster(t, t.TempDir(), server.RANDOM_PORT, server.RANDOM_PORT, nil)))
	})
}

// startCluster starts a NATS server with JetStream and a listener for leaf nodes. security may be nil, for no TLS.
func startCluster(t *testing.T, store string, port, leafPort int, security *tls.Config) *server.Server {
	t.Helper()
	ns, err := server.NewServer(&server.Options{
		ServerName: "cluster", Host: "127.0.0.1", Port: port, JetStream: true, JetStreamDomain: "hub", StoreDir: store, NoSigs: true,
		JetStreamMaxStore: 1 << 40, // streams reserve their limits; the default depends on the disk's free space
		TLSConfig:         security, TLSTimeout: 5,
		LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: leafPort, TLSConfig: security, TLSTimeout: 5},
	})
	require.NoError(t, err)
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	require.True(t, ns.ReadyForConnections(20*time.Second))
	return ns
}

// clusterFlags returns the flags of a gateway that is a leaf node of a cluster.
func clusterFlags(t *testing.T, cluster *server.Server) []string {
	t.Helper()
	state, err := cluster.Varz(nil)
	require.NoError(t, err)
	leaf := fmt.Sprintf("nats-leaf://127.0.0.1:%d", state.LeafNode.Port)
	return []string{"--nats", cluster.ClientURL(), "--nats-leaf", leaf, "--nats-domain", "hub", "--nats-listen", "127.0.0.1:0"}
}

// A leaf node reports that its cluster is away. When the cluster is back, clients and listeners continue.
func TestLeafNodeOutlivesItsCluster(t *testing.T) {
	t.Parallel()
	store := t.TempDir()
	cluster := startCluster(t, store, server.RANDOM_PORT, server.RANDOM_PORT, nil)
	flags, _, _ := withPolicy(t, "rules:\n  - {tokens: [a], write: [bin.mine]}\n", "a")
	natsFlags := clusterFlags(t, cluster)
	gw := remotetest.StartGateway(t, remotetest.StartOwner(t).Socket, append(flags, natsFlags...)...)
	gw.Attached(t)
	require.NotContains(t, gw.Log(), "read and write have no effect")

	ctx := t.Context()
	var mine *bins.Store
	remotetest.Eventually(t, func() (err error) {
		mine, err = bins.Open(ctx, connectAs(t, gw, "a"), bins.Options{Namespace: "mine"})
		return err
	})
	heard := make(chan string, 100)
	listener := connectAs(t, gw, "a")
	subscription, err := listener.Subscribe("bin.mine.>", func(m *nats.Msg) { heard <- string(m.Data) })
	require.NoError(t, err)
	require.NoError(t, listener.Flush())
	defer func() { require.NoError(t, subscription.Unsubscribe()) }()
	_, err = mine.Append(ctx, "x", bins.Value{Body: []byte("one")})
	require.NoError(t, err)
	select {
	case <-heard:
	case <-time.After(remotetest.Patience):
		t.Fatal("the item was not heard")
	}
	require.NoError(t, listener.Flush())
	require.Empty(t, heard, "the item was delivered twice")

	_, port, err := net.SplitHostPort(cluster.Addr().String())
	require.NoError(t, err)
	clientPort, err := strconv.Atoi(port)
	require.NoError(t, err)
	state, err := cluster.Varz(nil)
	require.NoError(t, err)
	cluster.Shutdown()
	cluster.WaitForShutdown()
	remotetest.Eventually(t, func() error {
		answer, err := http.Get(gw.HTTP() + "/readyz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusServiceUnavailable {
			return fmt.Errorf("ready without a cluster: %s", answer.Status)
		}
		return nil
	})
	startCluster(t, store, clientPort, state.LeafNode.Port, nil)
	gw.Attached(t)
	remotetest.Eventually(t, func() error {
		_, err := mine.Append(ctx, "x", bins.Value{Body: []byte("two")})
		return err
	})
	items, err := mine.Peek(ctx, "x")
	require.NoError(t, err)
	require.Equal(t, "one", string(items[0].Body))
	require.Equal(t, "two", string(items[len(items)-1].Body))
	select {
	case <-heard:
	case <-time.After(remotetest.Patience):
		t.Fatal("the item was not heard after the outage")
	}
}

// The cluster requires client certificates on both listeners. A leaf node without one stays without its cluster.
func TestLeafNodeHasACertificate(t *testing.T) {
	t.Parallel()
	authority := remotetest.NewAuthority(t)
	serverCert, serverKey := authority.Issue(t, t.TempDir(), "nats", time.Now().Add(time.Hour))
	cert, key := authority.Issue(t, t.TempDir(), "gateway", time.Now().Add(time.Hour))
	security := authority.TLSConfig(t, serverCert, serverKey)
	security.ClientAuth, security.ClientCAs = tls.RequireAndVerifyClientCert, security.RootCAs
	cluster := startCluster(t, t.TempDir(), server.RANDOM_PORT, server.RANDOM_PORT, security)
	state, err := cluster.Varz(nil)
	require.NoError(t, err)
	policy, _, _ := withPolicy(t, "rules:\n  - {tokens: [a], write: [bin.mine]}\n", "a")
	flags := append(policy, "--nats", "tls://"+cluster.Addr().String(), "--nats-leaf", fmt.Sprintf("tls://127.0.0.1:%d", state.LeafNode.Port),
		"--nats-domain", "hub", "--nats-listen", "127.0.0.1:0", "--nats-ca", authority.File)
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, append(flags, "--nats-cert", cert, "--nats-key", key)...)
	gw.Attached(t)
	remotetest.Eventually(t, func() error {
		mine, err := bins.Open(t.Context(), connectAs(t, gw, "a"), bins.Options{Namespace: "mine"})
		if err == nil {
			_, err = mine.Append(t.Context(), "x", bins.Value{Body: []byte("one")})
		}
		return err
	})
	require.EqualValues(t, 1, cluster.NumLeafNodes())

	remotetest.StartGateway(t, owner.Socket, flags...)
	time.Sleep(2 * time.Second) // it tries to connect several times
	require.EqualValues(t, 1, cluster.NumLeafNodes())
}

func TestLeafNodeFlagsAreChecked(t *testing.T) {
	t.Parallel()
	for want, flags := range map[string][]string{
		"belongs to a cluster":    {"--nats", "embedded", "--nats-leaf", "nats-leaf://a:7422", "--nats-domain", "hub"},
		"is not the JetStream":    {"--nats", "nats://a", "--nats-leaf", "nats-leaf://a:7422"},
		"not a URL such as nats-": {"--nats", "nats://a", "--nats-leaf", "a:7422", "--nats-domain", "hub"},
		"belong together":         {"--nats", "nats://a", "--nats-leaf", "tls://a:7422", "--nats-domain", "hub", "--nats-cert", "x"},
	} {
		require.Contains(t, remotetest.RefusedGateway(t, flags...), want, flags)
	}
}

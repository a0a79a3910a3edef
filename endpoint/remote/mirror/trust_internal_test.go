package mirror

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// The token is sent to trusted hosts over https, and to mirrors of this host.
func TestPeersSendTheTokenToTrustedPeers(t *testing.T) {
	list, err := parseTrusted([]string{"gpu7", "*.cluster.example", "10.1.0.0/16", "[fd00::7]"})
	require.NoError(t, err)
	withToken := &Peers{options: PeersOptions{Token: "secret"}, trusted: list}
	withoutList := &Peers{options: PeersOptions{Token: "secret"}}
	open := &Peers{}
	closed := &Peers{trusted: list}
	for _, c := range []struct {
		url, host                            string
		withToken, withoutList, open, closed bool
	}{
		{"https://gpu7:2537", "other", true, false, true, true},
		{"https://GPU7.:2537", "other", true, false, true, true},
		{"https://a.b.cluster.example", "other", true, false, true, true},
		{"https://10.1.2.3:1", "other", true, false, true, true},
		{"https://[fd00::7]:1", "other", true, false, true, true},
		{"https://[::ffff:10.1.2.3]:1", "other", true, false, true, true},
		{"http://gpu7:2537", "other", false, false, true, true},
		{"https://evil.example", "other", false, false, true, false},
		{"https://cluster.example.evil.example", "other", false, false, true, false},
		{"https://evilcluster.example", "other", false, false, true, false},
		{"https://10.2.0.1", "other", false, false, true, false},
		{"http://127.0.0.1:1", hostID(), true, true, true, true},
		{"http://127.0.0.1:1", "other", false, false, false, false},
		{"http://127.0.0.1:1", "", false, false, false, false},
		{"http://localhost:1", "other", false, false, false, false},
		{"https://[::1]:1", "other", false, false, false, false},
		{"http://0.0.0.0:1", "other", false, false, false, false},
	} {
		e := peerEntry{URL: c.url, Host: c.host}
		require.Equal(t, c.withToken, withToken.usable(e), "with a token: %+v", e)
		require.Equal(t, c.withoutList, withoutList.usable(e), "with a token and no list: %+v", e)
		require.Equal(t, c.open, open.usable(e), "without a token: %+v", e)
		require.Equal(t, c.closed, closed.usable(e), "with a list and no token: %+v", e)
	}
	for _, bad := range []string{"", "*.", "https://gpu7", "gpu*", "a:1", "u@h"} {
		_, err := parseTrusted([]string{bad})
		require.Error(t, err, bad)
	}
}

// A loopback address is announced only to clients of a NATS server on this host.
func TestAdvertisedAddressesAreOfThisHost(t *testing.T) {
	const here, there = "nats://127.0.0.1:4222", "nats://cluster:4222"
	for _, c := range []struct {
		address, want string
		servers       []string
	}{
		{"http://127.0.0.1:2537", "http://127.0.0.1:2537", []string{here}},
		{"http://localhost:2537", "http://localhost:2537", []string{"localhost:4222, " + here}},
		{"http://127.0.0.1:2537", "", []string{there}},
		{"http://[::1]:2537", "", []string{here, there}},
		{"http://localhost:2537", "", []string{here + "," + there}},
		{"https://gpu7:2537", "https://gpu7:2537", []string{there}},
		{"", "", []string{here}},
	} {
		got, err := ownAddress(c.address, &nats.Conn{Opts: nats.Options{Servers: c.servers}})
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%+v", c)
		got, err = ownAddress(c.address, &nats.Conn{Opts: nats.Options{Url: c.servers[0]}})
		require.NoError(t, err)
		if len(c.servers) == 1 {
			require.Equal(t, c.want, got, "%+v", c)
		}
	}
	for _, bad := range []string{"http://0.0.0.0:1", "https://[::]:1", "gpu7"} {
		_, err := ownAddress(bad, &nats.Conn{})
		require.Error(t, err, bad)
	}
}

// The token is not sent to a source in clear text.
func TestSourceInClearTextIsRefusedWithAToken(t *testing.T) {
	options := Options{Source: "http://gpu7:2537/m", Token: "secret", Owner: &endpoint.Client{}, Device: struct{ driver.Device }{}}
	_, err := New(options)
	require.ErrorContains(t, err, "clear text")
	options.PlainToken = true
	_, err = New(options)
	require.NoError(t, err)
	options.Source, options.PlainToken = "http://127.0.0.1:2537/m", false
	_, err = New(options)
	require.NoError(t, err)

	options.Source = "hf://org/model"
	for endpoint, refused := range map[string]bool{"http://hub:80": true, "http://127.0.0.1:80": false, "https://hub": false} {
		t.Setenv("HF_ENDPOINT", endpoint)
		_, err = New(options)
		if refused {
			require.ErrorContains(t, err, "clear text")
			options.PlainToken = true
			_, err = New(options)
			options.PlainToken = false
		}
		require.NoError(t, err)
	}
}

package models_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/browsertest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/module"
)

// publisher returns a function that publishes versions of a 64 KiB model with contents from a seed.
func publisher(t *testing.T, socket string) (publish func(seed uint64)) {
	t.Helper()
	dev := remotetest.OpenHost(t)
	client := remotetest.Dial(t, socket, dev)
	return func(seed uint64) {
		sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 2, Bytes: 64 << 10, Seed: seed})
		require.NoError(t, err)
		defer sd.Close()
		_, err = client.Publish(t.Context(), "m", sd, endpoint.PublishOptions{})
		require.NoError(t, err)
	}
}

// lease is the gateway's description of a lease.
type lease struct {
	Lease    string
	Version  uint64
	ServerID string `json:"server_id"`
	Seconds  int
}

func takeLease(t *testing.T, gw *remotetest.Gateway, path string) (out lease) {
	t.Helper()
	resp, text := gw.Do(t, http.MethodPost, path, nil)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", text)
	require.NoError(t, json.Unmarshal(text, &out))
	return out
}

// A leased version is kept after its replacement, until the lease is ended or expires.
func TestLeases(t *testing.T) {
	owner := remotetest.StartOwner(t)
	publish := publisher(t, owner.Socket)
	publish(1)
	gw := remotetest.StartGateway(t, owner.Socket, "--max-leased", "200KiB")
	gw.Attached(t)
	first := takeLease(t, gw, "/v1/models/m/leases?seconds=600")
	require.Equal(t, uint64(1), first.Version)
	require.Equal(t, 600, first.Seconds)
	publish(2)
	resp, _ := gw.Get(t, "/v1/models/m@1/model.safetensors")
	require.Equal(t, http.StatusOK, resp.StatusCode, "version 1 is kept")
	short := takeLease(t, gw, "/v1/models/m/leases?seconds=1")
	publish(3)

	t.Run("are renewed and end", func(t *testing.T) {
		resp, _ := gw.Do(t, http.MethodPost, "/v1/leases/"+first.Lease, nil)
		require.Equal(t, http.StatusOK, resp.StatusCode)
		remotetest.Eventually(t, func() error { // the short lease expires, and its version is released
			resp, text := gw.Get(t, "/v1/models/m@2/manifest")
			if resp.StatusCode != http.StatusNotFound {
				return errors.New(string(text))
			}
			return nil
		})
		resp, _ = gw.Do(t, http.MethodPost, "/v1/leases/"+short.Lease, nil)
		require.Equal(t, http.StatusNotFound, resp.StatusCode)
	})
	t.Run("are bounded", func(t *testing.T) {
		for _, path := range []string{"?seconds=0", "?seconds=601", "?seconds=x"} {
			resp, _ := gw.Do(t, http.MethodPost, "/v1/models/m/leases"+path, nil)
			require.Equal(t, http.StatusBadRequest, resp.StatusCode, path)
		}
		resp, _ := gw.Do(t, http.MethodPost, "/v1/models/nothing/leases", nil)
		require.Equal(t, http.StatusNotFound, resp.StatusCode)
		again := takeLease(t, gw, "/v1/models/m@1/leases?seconds=600") // another lease on the same version does not count again
		takeLease(t, gw, "/v1/models/m@3/leases?seconds=600")
		publish(4)
		takeLease(t, gw, "/v1/models/m/leases?seconds=600")
		publish(5)
		resp, text := gw.Do(t, http.MethodPost, "/v1/models/m/leases", nil)
		require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		require.Contains(t, string(text), "--max-leased")
		for _, id := range []string{again.Lease, first.Lease} {
			resp, _ = gw.Do(t, http.MethodDelete, "/v1/leases/"+id, nil)
			require.Equal(t, http.StatusNoContent, resp.StatusCode)
		}
		takeLease(t, gw, "/v1/models/m/leases")
		resp, _ = gw.Get(t, "/v1/models/m@1/manifest")
		require.Equal(t, http.StatusNotFound, resp.StatusCode, "nobody keeps version 1 any more")
	})
}

// The status names the hosts that use a version, until their leases end.
func TestLeasesByHost(t *testing.T) {
	owner := remotetest.StartOwner(t)
	publish := publisher(t, owner.Socket)
	publish(1)
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	first := takeLease(t, gw, "/v1/models/m/leases")
	takeLease(t, gw, "/v1/models/m/leases")
	publish(2)
	other := &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext,
	}}
	defer other.CloseIdleConnections()
	resp, err := other.Post(gw.HTTP()+"/v1/models/m/leases", "", nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)

	uses := func() (rows []string) {
		_, text := gw.Get(t, "/v1/status")
		var s struct {
			Components struct {
				Models []struct {
					Host, Model     string
					Version, Leases int
				}
			}
		}
		require.NoError(t, json.Unmarshal(text, &s))
		for _, u := range s.Components.Models {
			rows = append(rows, fmt.Sprint(u.Host, " ", u.Model, "@", u.Version, " ", u.Leases))
		}
		return rows
	}
	require.Equal(t, []string{"127.0.0.1 m@1 2", "127.0.0.2 m@2 1"}, uses())
	resp, _ = gw.Do(t, http.MethodDelete, "/v1/leases/"+first.Lease, nil)
	require.Equal(t, http.StatusNoContent, resp.StatusCode)
	require.Equal(t, []string{"127.0.0.1 m@1 1", "127.0.0.2 m@2 1"}, uses())

	t.Run("on the page", func(t *testing.T) {
		page := browsertest.Open(t, gw.HTTP()+"/", 1280, 1700)
		page.WaitFor(`!!document.getElementById("component-models")?.innerText.includes("Versions used by other hosts")`)
		page.WaitFor(`!!document.getElementById("component-models-table")?.innerText.includes("127.0.0.2")`)
		page.Screenshot("leases")
	})
}

// digestsOf returns the digests of a version's tensors.
func digestsOf(t *testing.T, gw *remotetest.Gateway, model string) map[string]string {
	t.Helper()
	resp, text := gw.Get(t, "/v1/models/"+model+"/manifest?digests")
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", text)
	var m struct {
		Tensors []struct{ Name, SHA256 string }
	}
	require.NoError(t, json.Unmarshal(text, &m))
	out := map[string]string{}
	for _, one := range m.Tensors {
		out[one.Name] = one.SHA256
	}
	return out
}

// A delta leads from the tensor of a leased version to the tensor of another version. Other bases are refused.
func TestDeltas(t *testing.T) {
	owner := remotetest.StartOwner(t)
	publish := publisher(t, owner.Socket)
	publish(1)
	gw := remotetest.StartGateway(t, owner.Socket, "--read-only")
	gw.Attached(t)
	kept := takeLease(t, gw, "/v1/models/m/leases")
	const name = "layers.00000000.weight"
	_, base := gw.Get(t, "/v1/models/m@1/tensors/"+name)
	old := digestsOf(t, gw, "m@1")
	require.Equal(t, digestOf(base), old[name])
	publish(2)
	_, want := gw.Get(t, "/v1/models/m/tensors/"+name)
	require.NotEqual(t, want, base)
	require.Equal(t, digestOf(want), digestsOf(t, gw, "m")[name])

	path := "/v1/models/m@2/deltas/" + name + "?lease=" + kept.Lease + "&base=" + old[name]
	resp, text := gw.Get(t, path)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	_, err := modelwire.ApplyDelta(base, 4, 0, bufio.NewReader(bytes.NewReader(text)))
	require.NoError(t, err)
	require.Equal(t, want, base)
	for what, path := range map[string]string{
		"another base":   "/v1/models/m@2/deltas/" + name + "?lease=" + kept.Lease + "&base=" + digestOf(nil),
		"another lease":  "/v1/models/m@2/deltas/" + name + "?lease=x&base=" + old[name],
		"another tensor": "/v1/models/m@2/deltas/nope?lease=" + kept.Lease + "&base=" + old[name],
		"no version":     "/v1/models/m@9/deltas/" + name + "?lease=" + kept.Lease + "&base=" + old[name],
	} {
		resp, text := gw.Get(t, path)
		require.Equal(t, http.StatusNotFound, resp.StatusCode, "%s: %s", what, text)
	}
	resp, _ = gw.Get(t, path+"&segment=-1")
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	resp, text = gw.Get(t, path+"&segment=9")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Empty(t, text, "there is nothing behind the last segment")
}

// A changes request answers when a version differs from the known one, and at the end of its wait.
func TestChanges(t *testing.T) {
	owner := remotetest.StartOwner(t)
	publish := publisher(t, owner.Socket)
	publish(1)
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	server := takeLease(t, gw, "/v1/models/m/leases").ServerID
	const path = "/v1/models/m/changes"
	resp, text := gw.Get(t, path)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.JSONEq(t, `{"name":"m","version":1,"server_id":"`+server+`"}`, string(text))
	resp, _ = gw.Get(t, path+"?server=another&version=1")
	require.Equal(t, http.StatusOK, resp.StatusCode, "version 1 of another owner is another")
	resp, _ = gw.Get(t, path+"?wait=50ms&version=1&server="+server)
	require.Equal(t, http.StatusNoContent, resp.StatusCode)
	for _, bad := range []string{"?version=x", "?wait=1h", "?wait=-1s", "?wait=x"} {
		resp, _ = gw.Get(t, path+bad)
		require.Equal(t, http.StatusBadRequest, resp.StatusCode, bad)
	}
	published := make(chan struct{})
	time.AfterFunc(100*time.Millisecond, func() { defer close(published); publish(2) })
	defer func() { <-published }() // the gateway receives the event before the publisher returns
	resp, text = gw.Get(t, path+"?wait=1m&version=1&server="+server)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Contains(t, string(text), `"version":2`)
}

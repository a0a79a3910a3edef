package session_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// schemaTables are the parts of fields.json that these tests compare with an owner.
type schemaTables struct {
	Messages map[string][]struct {
		Name string `json:"name"`
	} `json:"messages"`
	Numbers map[string]map[string]int `json:"numbers"`
}

func readSchemaTables(t *testing.T) (s schemaTables) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(protocolFile(t, "fields.json")), &s))
	return s
}

// The schema names only kinds of events that owners send.
func TestWatchEventKinds(t *testing.T) {
	s := fixture.HostileOwner(t)
	watcher, publisher := fixture.PolitePeer(t, s.Socket()), fixture.PolitePeer(t, s.Socket())
	publish := func() {
		in, file := fixture.Publication(t, true)
		in.Name = "n"
		require.Zero(t, answered(publisher, message.OpPublish, in, 0, file))
	}
	publish()
	var body string
	watch := watcher.Begin(message.OpWatch, message.Watch{Names: []string{"n"}}, 0)
	next(watcher, wire.KindResponse, watch, &body)
	sent := map[string]int{}
	hear := func() {
		var e message.Event
		next(watcher, wire.KindEvent, watch, &e)
		sent[e.Kind.String()] = int(e.Kind)
	}
	hear() // version 1, which exists
	publish()
	hear() // version 2; version 1 is freed, which the list shows without an event
	require.Zero(t, answered(publisher, message.OpWithdraw, message.Withdraw{Name: "n"}, 0))
	hear()
	require.Zero(t, answered(watcher, message.OpUnwatch, message.Unwatch{Watch: watch}, 0))
	require.Equal(t, readSchemaTables(t).Numbers["event"], sent)
}

// The memory of a version is sealed, so an acquire contains only a name, a version, a device and a part.
func TestClientAcquireRequest(t *testing.T) {
	t.Parallel()
	var names []string
	for _, f := range readSchemaTables(t).Messages["acquire"] {
		names = append(names, f.Name)
	}
	require.Equal(t, []string{"name", "version", "device", "part"}, names)
}

// The list of versions contains their devices, as the schema specifies.
func TestClientInfoDevices(t *testing.T) {
	s := fixture.HostileOwner(t)
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: s.Socket()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	list, err := c.List(t.Context())
	require.NoError(t, err)
	info, err := c.ServerInfo(t.Context())
	require.NoError(t, err)
	require.Len(t, info.Devices, 1)
	require.Equal(t, info.Devices, list[0].Versions[0].Devices)
	one, err := c.Info(t.Context(), list[0].Name)
	require.NoError(t, err)
	require.Equal(t, info.Devices, one.Versions[0].Devices)
}

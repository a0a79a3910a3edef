package natslink_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

func TestStartPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, err = natslink.Start(natslink.ServerOptions{Store: t.TempDir(), Listen: l.Addr().String()})
	require.ErrorContains(t, err, "address already in use")
}

func TestStartKeepsStore(t *testing.T) {
	dir, ctx := t.TempDir(), context.Background()
	for round := range 2 {
		server, err := natslink.Start(natslink.ServerOptions{Store: dir, Listen: "127.0.0.1:0"})
		require.NoError(t, err)
		conn, err := server.Connect()
		require.NoError(t, err)
		over, err := natslink.Connect(server.URL())
		require.NoError(t, err)
		js, err := jetstream.New(over)
		require.NoError(t, err)
		kv, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "b"})
		require.NoError(t, err)
		if round == 0 {
			_, err = kv.Put(ctx, "k", []byte("v"))
			require.NoError(t, err)
		}
		entry, err := kv.Get(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, "v", string(entry.Value()))
		over.Close()
		conn.Close()
		require.NoError(t, server.Close())
		require.NoError(t, server.Close())
	}
}

func TestStartRefuses(t *testing.T) {
	for name, opts := range map[string]natslink.ServerOptions{
		"no store":               {},
		"not loopback, no token": {Store: t.TempDir(), Listen: "0.0.0.0:0"},
		"no port":                {Store: t.TempDir(), Listen: "127.0.0.1"},
		"not a number":           {Store: t.TempDir(), Listen: "127.0.0.1:http"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := natslink.Start(opts)
			require.Error(t, err)
		})
	}
}

func TestStartToken(t *testing.T) {
	server, err := natslink.Start(natslink.ServerOptions{Store: t.TempDir(), Listen: "127.0.0.1:0", Token: "secret"})
	require.NoError(t, err)
	defer server.Close()
	_, err = natslink.Connect(server.URL())
	require.Error(t, err)
	conn, err := server.Connect()
	require.NoError(t, err, "the process itself needs no token")
	conn.Close()
}

func TestStartLocksStore(t *testing.T) {
	dir := t.TempDir()
	first, err := natslink.Start(natslink.ServerOptions{Store: dir})
	require.NoError(t, err)
	_, err = natslink.Start(natslink.ServerOptions{Store: dir})
	require.ErrorContains(t, err, "another process serves from the store")
	require.NoError(t, first.Close())
	again, err := natslink.Start(natslink.ServerOptions{Store: dir})
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

// Ask repeats a request soon if a server does not answer, if the servers elect a leader, and if a previous attempt is
// still in process.
func TestAskRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := func(code jetstream.ErrorCode) error { return &jetstream.APIError{Code: 503, ErrorCode: code} }
		answers := []error{refused(10008), refused(10009), refused(10158), nats.ErrNoResponders, nil}
		begin, asked := time.Now(), 0
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err := natslink.Ask(ctx, func(ctx context.Context) error {
			if asked++; asked == 1 {
				<-ctx.Done() // a lost server
				return ctx.Err()
			}
			return answers[asked-2]
		})
		require.NoError(t, err)
		require.Equal(t, 1+len(answers), asked)
		require.Less(t, time.Since(begin), time.Minute)

		asked = 0
		err = natslink.Ask(ctx, func(context.Context) error { asked++; return refused(10059) })
		require.Error(t, err, "permanent errors are not retried")
		require.Equal(t, 1, asked)
	})
}

// The folder of a stream that a client is creating is not a failure of the store, although the server does not list it yet. A
// folder that remains is a failure.
func TestCheckWaitsForStreams(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server, err := natslink.Start(natslink.ServerOptions{Store: dir})
	require.NoError(t, err)
	defer server.Close()
	conn, err := server.Connect()
	require.NoError(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "one"})
	require.NoError(t, err)
	require.NoError(t, server.Check())
	other := filepath.Join(dir, "jetstream", "$G", "streams", "other")
	require.NoError(t, os.Mkdir(other, 0o700))
	time.AfterFunc(100*time.Millisecond, func() { _ = os.Remove(other) })
	require.NoError(t, server.Check())
	require.NoError(t, os.Mkdir(other, 0o700))
	require.ErrorIs(t, server.Check(), natslink.ErrStore)
}

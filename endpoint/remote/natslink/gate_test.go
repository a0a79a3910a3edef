package natslink_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// startScoped starts a server whose clients have the scopes of their token.
func startScoped(t *testing.T, scopes map[string]*rights.Scopes) *natslink.Server {
	t.Helper()
	server, err := natslink.Start(natslink.ServerOptions{
		Store: t.TempDir(), Listen: "127.0.0.1:0",
		Admit: func(token string, _ *tls.ConnectionState, _, _ net.Addr) (natslink.Client, error) {
			of, found := scopes[token]
			if !found {
				return natslink.Client{}, errors.New("unknown token")
			}
			return natslink.Client{Name: token, Key: token + fmt.Sprint(of), Identity: token, Scopes: of}, nil
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server
}

func connectScoped(t *testing.T, server *natslink.Server, token string) *nats.Conn {
	t.Helper()
	conn, err := natslink.Connect(server.URL(), nats.Token(token), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// A client with scopes pulls messages through its own consumer, with their positions.
func TestGatePulls(t *testing.T) {
	t.Parallel()
	server := startScoped(t, map[string]*rights.Scopes{"admin": nil, "part": {Write: []string{"bin.mine.a.*"}}})
	admin, part := connectScoped(t, server, "admin"), connectScoped(t, server, "part")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	js, err := jetstream.New(admin)
	require.NoError(t, err)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "BINS_mine", Subjects: []string{"bin.mine.>", "bin-take.mine.>"}, AllowDirect: true})
	require.NoError(t, err)
	of, err := jetstream.New(part)
	require.NoError(t, err)
	for range 3 {
		_, err = of.Publish(ctx, "bin.mine.a.x", []byte("item"))
		require.NoError(t, err)
	}
	stream, err := of.Stream(ctx, "BINS_mine")
	require.NoError(t, err)
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{Name: "reader", FilterSubject: "bin.mine.a.x", AckPolicy: jetstream.AckNonePolicy})
	require.NoError(t, err)
	messages, err := consumer.Messages(jetstream.PullExpiry(2 * time.Second))
	require.NoError(t, err)
	defer messages.Stop()
	for i := range 3 {
		msg, err := messages.Next()
		require.NoError(t, err)
		meta, err := msg.Metadata()
		require.NoError(t, err)
		require.EqualValues(t, i+1, meta.Sequence.Stream)
	}
}

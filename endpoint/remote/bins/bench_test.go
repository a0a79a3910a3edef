package bins_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// pair measures an operation and the equivalent bare NATS operations alternately, against a server in another process.
// It reports the median of both in microseconds, and their ratio.
func pair(b *testing.B, ours, bare func(i int)) {
	times := [2][]time.Duration{}
	for i := range b.N {
		for k, f := range []func(int){ours, bare} {
			start := time.Now()
			f(i)
			times[k] = append(times[k], time.Since(start))
		}
	}
	medians := [2]float64{}
	for k := range times {
		slices.Sort(times[k])
		medians[k] = float64(times[k][len(times[k])/2].Nanoseconds()) / 1e3
	}
	b.ReportMetric(medians[0], "µs")
	b.ReportMetric(medians[1], "bare-µs")
	b.ReportMetric(medians[0]/medians[1], "ratio")
}

type benchSite struct {
	store *bins.Store
	js    jetstream.JetStream
	bare  jetstream.Stream
}

func newBenchSite(b *testing.B) *benchSite {
	b.Helper()
	address := remotetest.FreeAddress(b)
	startServer(b, b.TempDir(), address)
	conn, err := natslink.Connect("nats://" + address)
	require.NoError(b, err)
	b.Cleanup(conn.Close)
	store, err := bins.Open(b.Context(), conn, bins.Options{Namespace: "test"})
	require.NoError(b, err)
	js, err := jetstream.New(conn)
	require.NoError(b, err)
	bare, err := js.CreateStream(b.Context(), jetstream.StreamConfig{
		Name: "BARE", Subjects: []string{"bare.>"}, AllowRollup: true, AllowDirect: true, AllowMsgTTL: true,
	})
	require.NoError(b, err)
	return &benchSite{store: store, js: js, bare: bare}
}

func BenchmarkPut(b *testing.B) {
	s, ctx, body := newBenchSite(b), b.Context(), make([]byte, 1024)
	pair(b, func(int) {
		_, err := s.store.Put(ctx, "a", bins.Value{Body: body})
		require.NoError(b, err)
	}, func(i int) {
		msg := &nats.Msg{Subject: "bare.a", Data: body, Header: nats.Header{jetstream.MsgRollup: {jetstream.MsgRollupSubject}}}
		_, err := s.js.PublishMsg(ctx, msg, jetstream.WithMsgID(fmt.Sprint(i)))
		require.NoError(b, err)
	})
}

// BenchmarkTake takes one item: a read and a conditional write.
func BenchmarkTake(b *testing.B) {
	s, ctx, body := newBenchSite(b), b.Context(), make([]byte, 1024)
	pair(b, func(int) {
		_, err := s.store.Append(ctx, "a", bins.Value{Body: body})
		require.NoError(b, err)
		_, err = s.store.Take(ctx, "a", bins.TakeOptions{})
		require.NoError(b, err)
	}, func(int) {
		_, err := s.js.Publish(ctx, "bare.a", body)
		require.NoError(b, err)
		last, err := s.bare.GetLastMsgForSubject(ctx, "bare.a")
		require.NoError(b, err)
		msg := &nats.Msg{Subject: "bare.a", Header: nats.Header{jetstream.MsgRollup: {jetstream.MsgRollupSubject}, jetstream.MsgTTLHeader: {"1s"}}}
		_, err = s.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(last.Sequence))
		require.NoError(b, err)
	})
}

// BenchmarkNotify measures the time from the start of a write until a listener receives the event.
func BenchmarkNotify(b *testing.B) {
	s, ctx := newBenchSite(b), context.Background()
	events, err := s.store.Listen(ctx, "a")
	require.NoError(b, err)
	defer events.Close()
	consumer, err := s.bare.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	require.NoError(b, err)
	messages, err := consumer.Messages()
	require.NoError(b, err)
	defer messages.Stop()
	pair(b, func(int) {
		_, err := s.store.Put(ctx, "a", bins.Value{})
		require.NoError(b, err)
		_, err = nextEvent(ctx, events)
		require.NoError(b, err)
	}, func(int) {
		_, err := s.js.Publish(ctx, "bare.a", nil)
		require.NoError(b, err)
		_, err = messages.Next()
		require.NoError(b, err)
	})
}

// BenchmarkPeek reads one item.
func BenchmarkPeek(b *testing.B) {
	s, ctx, body := newBenchSite(b), b.Context(), make([]byte, 1024)
	_, err := s.store.Append(ctx, "a", bins.Value{Body: body})
	require.NoError(b, err)
	_, err = s.js.Publish(ctx, "bare.a", body)
	require.NoError(b, err)
	pair(b, func(int) {
		_, err = s.store.Peek(ctx, "a")
		require.NoError(b, err)
	}, func(int) {
		_, err := s.bare.GetLastMsgForSubject(ctx, "bare.a")
		require.NoError(b, err)
	})
}

// BenchmarkClients appends items of 64 bytes with 1 to 1,000 clients, each with a connection over TCP. The floor is a
// message to the same server that JetStream stores. Run it with -benchtime 1x.
func BenchmarkClients(b *testing.B) {
	address := remotetest.FreeAddress(b)
	startServer(b, b.TempDir(), address)
	ctx, body := b.Context(), make([]byte, 64)
	first, err := natslink.Connect("nats://" + address)
	require.NoError(b, err)
	defer first.Close()
	js, err := jetstream.New(first)
	require.NoError(b, err)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "FLOOR", Subjects: []string{"floor.>"}, Storage: jetstream.FileStorage})
	require.NoError(b, err)
	for _, clients := range remotetest.Curve {
		b.Run(strconv.Itoa(clients), func(b *testing.B) {
			connect := func() *nats.Conn {
				conn, err := natslink.Connect("nats://" + address)
				require.NoError(b, err)
				b.Cleanup(conn.Close)
				return conn
			}
			bare := remotetest.Run(b, clients, 2*time.Second, func() func() error {
				js, err := jetstream.New(connect())
				require.NoError(b, err)
				return func() error { _, err := js.Publish(ctx, "floor.x", body); return err }
			})
			bare.Report(b, "bare")
			load := remotetest.Run(b, clients, 2*time.Second, func() func() error {
				s, err := bins.Open(ctx, connect(), bins.Options{Namespace: "bench"})
				require.NoError(b, err)
				return func() error { _, err := s.Append(ctx, "a", bins.Value{Body: body}); return err }
			})
			load.Report(b, "bins")
			b.ReportMetric(bare.Rate/load.Rate, "bare/bins")
			b.ReportMetric(0, "ns/op")
		})
	}
}

package bins_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// A server that cannot remove anything, such as one with a full disk, does not delay Take. The items are gone for all
// readers, and a sweep removes their leftovers.
func TestTakeReturnsBeforeBodiesAreRemoved(t *testing.T) {
	t.Parallel()
	address := remotetest.FreeAddress(t)
	_, conn := start(t, natslink.ServerOptions{Listen: address})
	proxy := startLossyProxy(t, address)
	lossy, err := natslink.Connect(proxy.address)
	require.NoError(t, err)
	defer lossy.Close()
	taker, writer := open(t, lossy, bins.Options{}), open(t, conn, bins.Options{})
	ctx := longContext(t)
	const total = 8
	large := bytes.Repeat([]byte("x"), bins.DefaultInline+1)
	for range total {
		_, err := writer.Append(ctx, "a", bins.Value{Body: large})
		require.NoError(t, err)
	}
	proxy.begin(func(subject string) bool {
		return strings.HasPrefix(subject, "$JS.API.STREAM.PURGE.") || strings.HasPrefix(subject, "$O.")
	})
	begin := time.Now()
	items, err := taker.Take(ctx, "a", bins.TakeOptions{})
	require.NoError(t, err)
	require.Len(t, items, total)
	require.Less(t, time.Since(begin), 20*time.Second, "one timeout for each body is %v", total*5*time.Second)
	_, err = writer.Take(ctx, "a", bins.TakeOptions{})
	require.ErrorIs(t, err, bins.ErrNotFound)
	n, err := writer.Count(ctx, "a")
	require.NoError(t, err)
	require.Zero(t, n)
	require.Len(t, objects(t, conn), total, "nothing can be removed")

	removed, err := writer.Sweep(ctx, 0)
	require.NoError(t, err)
	require.Equal(t, total, removed)
	require.Zero(t, objectMessages(ctx, t, conn, "BINS_test"))
	info, err := bins.StreamOf(writer).Info(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, info.State.Msgs, "the settled claim, which expires")
}

// Continuous writers do not keep a taker of all items, or Delete, from making progress. Every item is delivered once or
// deleted.
func TestTakeBesideWriters(t *testing.T) {
	t.Parallel()
	server, conn := start(t, natslink.ServerOptions{})
	ctx := longContext(t)
	s := open(t, conn, bins.Options{})
	var writers sync.WaitGroup
	var appended atomic.Int64
	stop := make(chan struct{})
	for range 4 {
		conn, err := server.Connect()
		require.NoError(t, err)
		defer conn.Close()
		w := open(t, conn, bins.Options{})
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := w.Append(ctx, "a", text("x")); err != nil {
					t.Error(err)
					return
				}
				appended.Add(1)
			}
		})
	}
	seen := map[uint64]bool{}
	take := func(ctx context.Context, wait bool) error {
		items, err := s.Take(ctx, "a", bins.TakeOptions{Wait: wait})
		for _, item := range items {
			require.False(t, seen[item.Sequence], "item %d was delivered twice", item.Sequence)
			seen[item.Sequence] = true
		}
		return err
	}
	for range 20 {
		require.NoError(t, take(ctx, true))
	}
	require.NotEmpty(t, seen)
	deleting, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	require.NoError(t, s.Delete(deleting, "a"), "beside writers")
	before := len(seen)
	require.NoError(t, take(ctx, true))
	close(stop)
	writers.Wait()
	err := take(ctx, false)
	require.True(t, err == nil || errors.Is(err, bins.ErrNotFound), "%v", err)
	require.Greater(t, len(seen), before)
	require.LessOrEqual(t, int64(len(seen)), appended.Load())
}

// Take with Damaged removes damaged items, reports them, and returns the others. Without it, Take fails and removes nothing.
func TestTakeSkipsDamagedItems(t *testing.T) {
	t.Parallel()
	_, conn := start(t, natslink.ServerOptions{})
	ctx := longContext(t)
	s := open(t, conn, bins.Options{})
	foreign := func() { // a message of a program that does not know the format
		js, err := jetstream.New(conn)
		require.NoError(t, err)
		_, err = js.Publish(ctx, "bin.test.a", []byte("no headers"))
		require.NoError(t, err)
	}
	large := bytes.Repeat([]byte("x"), bins.DefaultInline+1)
	for _, body := range [][]byte{[]byte("1"), large, []byte("2")} {
		_, err := s.Append(ctx, "a", bins.Value{Body: body})
		require.NoError(t, err)
		foreign()
	}
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	bodies, err := js.ObjectStore(ctx, "BINS_test")
	require.NoError(t, err)
	for _, name := range objects(t, conn) {
		require.NoError(t, bodies.Delete(ctx, name)) // the body of an item is lost
	}
	_, err = s.Take(ctx, "a", bins.TakeOptions{})
	require.ErrorIs(t, err, bins.ErrCorrupt)
	n, err := s.Count(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, 6, n)
	var damaged []uint64
	skip := bins.TakeOptions{Damaged: func(sequence uint64, err error) {
		require.Error(t, err)
		damaged = append(damaged, sequence)
	}}
	items, err := s.Take(ctx, "a", skip)
	require.NoError(t, err)
	require.Len(t, items, 2)
	require.Equal(t, "1 2", string(items[0].Body)+" "+string(items[1].Body))
	require.Len(t, damaged, 4)

	foreign()
	_, err = s.Take(ctx, "a", skip)
	require.ErrorIs(t, err, bins.ErrNotFound, "only a damaged item, which is removed")
	require.Len(t, damaged, 5)

	require.NoError(t, bins.Drop(ctx, conn, "test"))
	require.ErrorIs(t, bins.Drop(ctx, conn, "test"), bins.ErrNotFound)
	list, err := bins.Survey(ctx, conn)
	require.NoError(t, err)
	require.Empty(t, list)
}

// BenchmarkTakeBesideAppenders takes 1,000 items, and everything, from a bin with at least 1,000 items, while appenders
// write 15,000 items a second to it, if the machine can. It reports the median and the worst take in milliseconds.
func BenchmarkTakeBesideAppenders(b *testing.B) {
	for name, most := range map[string]int{"1000": 1000, "all": 0} {
		b.Run(name, func(b *testing.B) {
			server, err := natslink.Start(natslink.ServerOptions{Store: b.TempDir()})
			require.NoError(b, err)
			defer server.Close()
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			connect := func() *bins.Store {
				conn, err := server.Connect()
				require.NoError(b, err)
				b.Cleanup(conn.Close)
				s, err := bins.Open(ctx, conn, bins.Options{Namespace: "bench"})
				require.NoError(b, err)
				return s
			}
			var appended, taken atomic.Int64
			var writers sync.WaitGroup
			defer writers.Wait()
			defer cancel()
			const parallel, rate = 4, 15000
			for range parallel {
				conn, err := server.Connect()
				require.NoError(b, err)
				b.Cleanup(conn.Close)
				writers.Go(func() { appendWithoutWaiting(ctx, b, conn, rate/parallel, &appended, &taken) })
			}
			taker := connect()
			begin, before := time.Now(), appended.Load()
			var took []time.Duration
			for b.Loop() {
				for appended.Load()-taken.Load() < 1000 {
					time.Sleep(time.Millisecond)
				}
				start := time.Now()
				list, err := taker.Take(ctx, "a", bins.TakeOptions{Max: most, Wait: true})
				require.NoError(b, err)
				took = append(took, time.Since(start))
				taken.Add(int64(len(list)))
			}
			slices.Sort(took)
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			b.ReportMetric(ms(took[len(took)/2]), "median-ms")
			b.ReportMetric(ms(took[len(took)-1]), "worst-ms")
			b.ReportMetric(float64(appended.Load()-before)/time.Since(begin).Seconds(), "appends/s")
			b.ReportMetric(float64(taken.Load())/float64(len(took)), "items/take")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// appendWithoutWaiting appends items at a rate, as a program in another language may do: it does not wait for the answer
// to one item before it sends the next. It counts the items that are stored, and pauses while very many were not taken.
func appendWithoutWaiting(ctx context.Context, b *testing.B, conn *nats.Conn, rate int, stored, taken *atomic.Int64) {
	const pending, backlog = 512, 200_000
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(pending))
	require.NoError(b, err)
	answers := make(chan jetstream.PubAckFuture, pending)
	var counting sync.WaitGroup
	defer counting.Wait()
	defer close(answers)
	counting.Go(func() {
		for answer := range answers {
			select {
			case <-answer.Ok():
				stored.Add(1)
			case <-answer.Err():
			}
		}
	})
	for begin, sent := time.Now(), 0; ctx.Err() == nil; time.Sleep(time.Millisecond) {
		for due := int(time.Since(begin).Seconds() * float64(rate)); sent < due && ctx.Err() == nil; sent++ {
			if stored.Load()-taken.Load() > backlog {
				break
			}
			msg := &nats.Msg{Subject: "bin.bench.a", Data: []byte("x"), Header: nats.Header{"Bin-Op": {"append"}, "Bin-Size": {"1"}, "Bin-Type": {`"text/plain"`}}}
			answer, err := js.PublishMsgAsync(msg, jetstream.WithMsgID(nuid.Next()))
			if err != nil {
				continue // the server is behind
			}
			answers <- answer
		}
	}
}

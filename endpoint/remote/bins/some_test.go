package bins_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// If a take removes some items of a bin, the others keep their order and sequence numbers, and listeners receive their
// number.
func TestTakeSome(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	s, ctx := open(t, conn, bins.Options{Inline: 100}), t.Context()
	l, err := s.Listen(ctx, ">")
	require.NoError(t, err)
	defer l.Close()
	var last uint64
	for i := range 5 {
		body := fmt.Sprint(i)
		if i == 1 {
			body = fmt.Sprintf("%0200d", i) // stored in the object store
		}
		last, err = s.Append(ctx, "a", text(body))
		require.NoError(t, err)
		event, err := nextEvent(ctx, l)
		require.NoError(t, err)
		require.Equal(t, i+1, event.Items)
	}
	items, err := s.Take(ctx, "a", bins.TakeOptions{Max: 2})
	require.NoError(t, err)
	require.Equal(t, []string{"0", fmt.Sprintf("%0200d", 1)}, bodies(items))
	event, err := nextEvent(ctx, l)
	require.NoError(t, err)
	require.Equal(t, bins.Event{Bin: "a", Items: 3, Op: "take", Sequence: event.Sequence}, event)
	n, err := s.Count(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, 3, n)
	items, err = s.Peek(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, []string{"2", "3", "4"}, bodies(items))
	require.Equal(t, last, items[2].Sequence)

	_, err = s.Append(ctx, "a", text("5"), bins.IfLast(last))
	require.NoError(t, err, "the newest item is unchanged")
	items, err = s.Take(ctx, "a", bins.TakeOptions{Max: 10})
	require.NoError(t, err)
	require.Equal(t, []string{"2", "3", "4", "5"}, bodies(items))
	_, err = s.Take(ctx, "a", bins.TakeOptions{Max: 1})
	require.ErrorIs(t, err, bins.ErrNotFound)
	_, err = s.Take(ctx, "a", bins.TakeOptions{Max: -1})
	require.Error(t, err)
}

// A take may be settled before a listener reads it, which replaces its message. The listener reports the take from the
// message that settled it.
func TestListenerReadsSettledTake(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	s, ctx := open(t, conn, bins.Options{}), t.Context()
	l, err := s.Listen(ctx, ">")
	require.NoError(t, err)
	defer l.Close()
	for i := range 3 {
		_, err := s.Append(ctx, "a", text(fmt.Sprint(i)))
		require.NoError(t, err)
		_, err = nextEvent(ctx, l)
		require.NoError(t, err)
	}
	settled := nats.NewMsg("bin-take.test.a")
	settled.Header = nats.Header{"Bin-Op": {"settled"}, "Bin-Up-To": {"2"}, "Bin-Before": {"3"}, "Bin-Claim": {"take"}, "Bin-Items": {"2"}, "Bin-Since": {"0"}}
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	_, err = js.PublishMsg(ctx, settled)
	require.NoError(t, err)
	event, err := nextEvent(ctx, l)
	require.NoError(t, err)
	require.Equal(t, bins.Event{Bin: "a", Items: 1, Op: "take", Sequence: 4}, event)
}

// A take of some items reads them and the newest claim, not the whole bin. It does so too if the items of an unfinished take
// are still in the stream.
func TestTakeSomeOfMany(t *testing.T) {
	t.Parallel()
	address := remotetest.FreeAddress(t)
	_, conn := start(t, natslink.ServerOptions{Listen: address})
	ctx := longContext(t)
	writer := open(t, conn, bins.Options{})
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	const total = 3000 // six batches
	for i := range total {
		_, err := js.PublishMsgAsync(&nats.Msg{Subject: "bin.test.a", Data: []byte(strconv.Itoa(i)), Header: nats.Header{"Bin-Op": {"append"}, "Bin-Size": {strconv.Itoa(len(strconv.Itoa(i)))}}})
		require.NoError(t, err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		require.FailNow(t, "the items are not stored")
	}

	proxy := startLossyProxy(t, address)
	lossy, err := natslink.Connect(proxy.address)
	require.NoError(t, err)
	defer lossy.Close()
	taker := open(t, lossy, bins.Options{})
	var batches atomic.Int64
	proxy.begin(func(subject string) bool {
		if subject == "$JS.API.DIRECT.GET.BINS_test" {
			batches.Add(1)
		}
		return strings.HasPrefix(subject, "$JS.API.STREAM.PURGE.") // the taken items remain
	})
	next := 0
	for _, max := range []int{10, 1, 700, 5} {
		before := batches.Load()
		items, err := taker.Take(ctx, "a", bins.TakeOptions{Max: max})
		require.NoError(t, err)
		require.Len(t, items, max)
		require.LessOrEqual(t, batches.Load()-before, int64(next+max+511)/512, "for %d items after %d", max, next)
		for _, item := range items {
			require.Equal(t, strconv.Itoa(next), string(item.Body))
			next++
		}
	}
	n, err := writer.Count(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, total-next, n)
}

// If takers of some and of all items race with a writer, each item is delivered to one taker.
func TestTakeSomeRace(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	s, ctx := open(t, conn, bins.Options{}), t.Context()
	const total = 120
	var mu sync.Mutex
	seen := map[string]int{}
	all := make(chan struct{})
	var workers sync.WaitGroup
	for _, most := range []int{1, 2, 3, 0} {
		workers.Go(func() {
			for {
				items, err := s.Take(ctx, "a", bins.TakeOptions{Max: most})
				mu.Lock()
				for _, item := range items {
					seen[string(item.Body)]++
				}
				n := len(seen)
				mu.Unlock()
				if err != nil {
					select {
					case <-all:
						return
					case <-time.After(time.Millisecond):
					}
				}
				if n == total {
					return
				}
			}
		})
	}
	for i := range total {
		_, err := s.Append(ctx, "a", text(fmt.Sprint(i)))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) == total
	}, time.Minute, 5*time.Millisecond)
	close(all)
	workers.Wait()
	for name, n := range seen {
		require.Equal(t, 1, n, "item %s", name)
	}
}

// If a taker is killed before it has removed its claimed items, they are not delivered again. The next reader removes
// them, and so does Sweep.
func TestTakeKilledBeforeRemoval(t *testing.T) {
	for name, remove := range map[string]func(context.Context, *bins.Store) error{
		"reader": func(ctx context.Context, s *bins.Store) error { _, err := s.Peek(ctx, "a"); return err },
		"sweep":  func(ctx context.Context, s *bins.Store) error { _, err := s.Sweep(ctx, 0); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, conn := start(t, natslink.ServerOptions{})
			s, ctx := open(t, conn, bins.Options{}), longContext(t)
			var taken uint64
			for i := range 3 {
				sequence, err := s.Append(ctx, "a", text(fmt.Sprint(i)))
				require.NoError(t, err)
				if i == 1 {
					taken = sequence
				}
			}
			js, err := jetstream.New(conn)
			require.NoError(t, err)
			_, err = js.PublishMsg(ctx, &nats.Msg{Subject: "bin-take.test.a", Header: nats.Header{
				"Bin-Op": {"take"}, "Bin-Items": {"2"}, "Bin-Up-To": {fmt.Sprint(taken)},
			}})
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				require.NoError(t, remove(ctx, s))
				items, err := s.Peek(ctx, "a")
				require.NoError(t, err)
				require.Equal(t, []string{"2"}, bodies(items))
				n, err := s.Count(ctx, "a")
				require.NoError(t, err)
				require.Equal(t, 1, n)
				stream, err := js.Stream(ctx, "BINS_test")
				require.NoError(t, err)
				return stream.CachedInfo().State.Msgs == 2 // the item and the claim
			}, time.Minute, 100*time.Millisecond, "taken items are still stored")
			items, err := s.Take(ctx, "a", bins.TakeOptions{})
			require.NoError(t, err)
			require.Equal(t, []string{"2"}, bodies(items))
		})
	}
}

// The elements of a list are items, as in tensorshare. Appended items follow them, and the bin counts the list as one.
func TestPutList(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	s, ctx := open(t, conn, bins.Options{}), t.Context()
	_, err := s.Put(ctx, "a", bins.Value{Body: []byte(` [1, {"x": [2]}, "three"]`)}, bins.AsList())
	require.NoError(t, err)
	_, err = s.Append(ctx, "a", text("[4]"))
	require.NoError(t, err)
	n, err := s.Count(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, 2, n)
	want := []string{"1", `{"x": [2]}`, `"three"`, "[4]"}
	items, err := s.Peek(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, want, bodies(items))
	items, err = s.Take(ctx, "a", bins.TakeOptions{Max: 1})
	require.NoError(t, err)
	require.Equal(t, want[:3], bodies(items))

	_, err = s.Put(ctx, "a", text("[]"), bins.AsList())
	require.NoError(t, err)
	items, err = s.Take(ctx, "a", bins.TakeOptions{})
	require.NoError(t, err)
	require.Empty(t, items, "an empty list counts as one item without elements")
	for _, body := range []string{"", "{}", "[1", "[1] 2"} {
		_, err = s.Put(ctx, "a", text(body), bins.AsList())
		require.ErrorIs(t, err, bins.ErrNotList, body)
	}
	_, err = s.Append(ctx, "a", text("[1]"), bins.AsList())
	require.ErrorIs(t, err, bins.ErrNotList)
}

// Reads leave no subscriptions on the connection.
func TestReadersSubscribeOnce(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	s, ctx := open(t, conn, bins.Options{}), t.Context()
	_, err := s.Append(ctx, "a", text("1"))
	require.NoError(t, err)
	_, err = s.Peek(ctx, "a")
	require.NoError(t, err)
	before := conn.NumSubscriptions()
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			for range 20 {
				items, err := s.Peek(ctx, "a")
				if err != nil || len(items) != 1 {
					t.Error(items, err)
				}
			}
		})
	}
	readers.Wait()
	require.LessOrEqual(t, conn.NumSubscriptions(), before+3)
}

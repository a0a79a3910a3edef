package bins_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
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

func openQueue(t *testing.T, conn *nats.Conn, opts bins.QueueOptions) *bins.Queue {
	t.Helper()
	if opts.Namespace == "" {
		opts.Namespace = "test"
	}
	q, err := bins.OpenQueue(t.Context(), conn, opts)
	require.NoError(t, err)
	return q
}

// objectMessages returns the number of messages in the stream of a bucket: descriptions, pieces and markers.
func objectMessages(ctx context.Context, t *testing.T, conn *nats.Conn, bucket string) int {
	t.Helper()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	stream, err := js.Stream(ctx, "OBJ_"+bucket)
	require.NoError(t, err)
	return int(stream.CachedInfo().State.Msgs)
}

// If the context of a Pull ends while it loads bodies, Pull returns the loaded items and puts the others back. The next
// puller receives them even if each item may be delivered only once.
func TestQueuePullCancelled(t *testing.T) {
	t.Parallel()
	address := remotetest.FreeAddress(t)
	_, straight := start(t, natslink.ServerOptions{Listen: address})
	proxy := startLossyProxy(t, address)
	conn, err := natslink.Connect(proxy.address)
	require.NoError(t, err)
	defer conn.Close()
	const total = 40
	opts := bins.QueueOptions{Options: bins.Options{Inline: 10}, Deliveries: 1, Redeliver: time.Minute}
	q := openQueue(t, conn, opts)
	ctx := longContext(t)
	for i := range total {
		_, err := q.Push(ctx, "a", text(fmt.Sprintf("%020d", i)))
		require.NoError(t, err)
	}
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	var reads atomic.Int64
	proxy.begin(func(subject string) bool {
		if strings.HasPrefix(subject, "$JS.API.DIRECT.GET.OBJ_QUEUE_test.") && reads.Add(1) == 9 {
			cancel()
		}
		return false
	})
	got := map[string]int{}
	first, err := q.Pull(short, total)
	require.NoError(t, err)
	require.Error(t, short.Err())
	require.Less(t, len(first), total)
	other := openQueue(t, straight, opts)
	for deliveries := first; ; {
		for _, d := range deliveries {
			got[string(d.Body)]++
			require.Equal(t, 1, d.Deliveries)
			require.NoError(t, d.Ack(ctx))
		}
		if len(got) == total {
			break
		}
		deliveries, err = other.Pull(ctx, total)
		require.NoError(t, err, "%d of %d items", len(got), total)
	}
	for body, n := range got {
		require.Equal(t, 1, n, body)
	}
	require.NoError(t, q.Drain(ctx))
	require.NoError(t, other.Drain(ctx))
	_, err = other.Sweep(ctx, time.Hour)
	require.NoError(t, err)
	require.Zero(t, objectMessages(ctx, t, straight, "QUEUE_test"))
}

// A puller puts back items over its own limit. These deliveries do not count.
func TestQueuePullOverLimit(t *testing.T) {
	t.Parallel()
	_, conn := start(t, natslink.ServerOptions{})
	ctx := longContext(t)
	opts := bins.QueueOptions{Options: bins.Options{Inline: 1000}, Deliveries: 1}
	q := openQueue(t, conn, opts)
	opts.MaxItemBytes = 100
	small := openQueue(t, conn, opts)
	large := bytes.Repeat([]byte("x"), 5000)
	for _, body := range [][]byte{large, large[:500], []byte("small")} {
		_, err := q.Push(ctx, "a", bins.Value{Body: body})
		require.NoError(t, err)
	}
	first, err := small.Pull(ctx, 10)
	require.NoError(t, err)
	require.Len(t, first, 1)
	require.Equal(t, "small", string(first[0].Body))
	require.NoError(t, first[0].Ack(ctx))
	short, cancel := context.WithTimeout(ctx, 2500*time.Millisecond) // by then the large items have arrived again
	defer cancel()
	_, err = small.Pull(short, 10)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	sizes := map[int]bool{}
	for len(sizes) < 2 {
		deliveries, err := q.Pull(ctx, 10)
		require.NoError(t, err)
		for _, d := range deliveries {
			require.Equal(t, 1, d.Deliveries)
			sizes[len(d.Body)] = true
			require.NoError(t, d.Ack(ctx))
		}
	}
	require.Equal(t, map[int]bool{500: true, 5000: true}, sizes)
}

// An item whose deliveries are used up leaves no message or body.
func TestQueueDropFreesSpace(t *testing.T) {
	t.Parallel()
	_, conn := start(t, natslink.ServerOptions{})
	ctx := longContext(t)
	q := openQueue(t, conn, bins.QueueOptions{Options: bins.Options{Inline: 10}, Deliveries: 2})
	for range 3 {
		_, err := q.Push(ctx, "a", bins.Value{Body: make([]byte, 1000)})
		require.NoError(t, err)
	}
	for delivered := 0; delivered < 6; {
		deliveries, err := q.Pull(ctx, 3)
		require.NoError(t, err)
		for _, d := range deliveries {
			delivered++
			require.NoError(t, d.Release(0))
		}
	}
	require.Eventually(t, func() bool {
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		_, err := q.Pull(short, 3)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		n, err := q.Len(ctx)
		require.NoError(t, err)
		return n == 0
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, q.Drain(ctx))
	require.Zero(t, objectMessages(ctx, t, conn, "QUEUE_test"))
}

// Purge removes the bodies of the items that it removes, and no others.
func TestQueuePurgeFreesBodies(t *testing.T) {
	t.Parallel()
	_, conn := start(t, natslink.ServerOptions{})
	ctx := longContext(t)
	q := openQueue(t, conn, bins.QueueOptions{Options: bins.Options{Inline: 10}})
	for _, topic := range []string{"v1.a", "v1.b", "v2.a"} {
		_, err := q.Push(ctx, topic, bins.Value{Body: make([]byte, 1000)})
		require.NoError(t, err)
	}
	require.NoError(t, q.Purge(ctx, "v1.>"))
	require.NoError(t, q.Drain(ctx))
	require.Equal(t, 2, objectMessages(ctx, t, conn, "QUEUE_test"), "a description and a piece")
	left, err := q.Pull(ctx, 10)
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Len(t, left[0].Body, 1000)
}

// An item over a reader's limit is not reported as damaged.
func TestReaderSmallerLimit(t *testing.T) {
	t.Parallel()
	_, conn := start(t, natslink.ServerOptions{})
	ctx := longContext(t)
	s, small := open(t, conn, bins.Options{Inline: 100}), open(t, conn, bins.Options{Inline: 100, MaxItemBytes: 10})
	for _, size := range []int{50, 5000} {
		bin := fmt.Sprint("a", size)
		_, err := s.Append(ctx, bin, bins.Value{Body: make([]byte, size)})
		require.NoError(t, err)
		_, err = small.Peek(ctx, bin)
		require.ErrorIs(t, err, bins.ErrTooLarge)
		_, err = small.Take(ctx, bin, bins.TakeOptions{})
		require.ErrorIs(t, err, bins.ErrTooLarge)
		require.NotErrorIs(t, err, bins.ErrCorrupt)
		items, err := s.Take(ctx, bin, bins.TakeOptions{})
		require.NoError(t, err)
		require.Len(t, items[0].Body, size)
	}
}

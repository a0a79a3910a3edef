package bins_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

func TestQueueDelivers(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	ctx := t.Context()
	q, err := bins.OpenQueue(ctx, conn, bins.QueueOptions{
		Options: bins.Options{Namespace: "q", Inline: 100}, Redeliver: 3 * time.Second, Deliveries: 2,
	})
	require.NoError(t, err)
	large := bytes.Repeat([]byte("x"), 1000)
	for i := range 3 {
		_, err := q.Push(ctx, fmt.Sprintf("v%d.a b", i), bins.Value{Body: large[:i*400]})
		require.NoError(t, err)
	}
	first, err := q.Pull(ctx, 10)
	require.NoError(t, err)
	for len(first) < 3 { // a pull returns the items that have arrived
		more, err := q.Pull(ctx, 10)
		require.NoError(t, err)
		first = append(first, more...)
	}
	require.Len(t, first, 3)
	require.Equal(t, "v2.a b", first[2].Topic)
	require.Equal(t, large[:800], first[2].Body)
	require.NoError(t, first[0].Ack(ctx))
	require.NoError(t, first[1].Release(0))

	again, err := q.Pull(ctx, 10)
	require.NoError(t, err)
	require.Len(t, again, 1, "unacknowledged items are not delivered")
	require.Equal(t, 2, again[0].Deliveries)
	require.NoError(t, again[0].Drop("test"))

	again, err = q.Pull(ctx, 10)
	require.NoError(t, err)
	require.Equal(t, first[2].Sequence, again[0].Sequence, "not acknowledged in time")
	require.NoError(t, again[0].Ack(ctx))
	n, err := q.Len(ctx)
	require.NoError(t, err)
	require.Zero(t, n)

	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err = q.Pull(short, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestQueuePurge(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	ctx := t.Context()
	q, err := bins.OpenQueue(ctx, conn, bins.QueueOptions{Options: bins.Options{Namespace: "q"}})
	require.NoError(t, err)
	for _, topic := range []string{"v1.a", "v1.b", "v2.a"} {
		_, err := q.Push(ctx, topic, text(topic))
		require.NoError(t, err)
	}
	require.NoError(t, q.Purge(ctx, "v1.>"))
	left, err := q.Pull(ctx, 10)
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, "v2.a", left[0].Topic)
}

func TestQueueFull(t *testing.T) {
	_, conn := start(t, natslink.ServerOptions{})
	q, err := bins.OpenQueue(t.Context(), conn, bins.QueueOptions{Options: bins.Options{Namespace: "q", MaxBytes: 64 << 10}})
	require.NoError(t, err)
	body := make([]byte, 20<<10)
	for range 3 {
		_, err := q.Push(t.Context(), "a", bins.Value{Body: body})
		require.NoError(t, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err = q.Push(short, "a", bins.Value{Body: body})
	require.ErrorIs(t, err, bins.ErrFull)

	pushed := make(chan error, 1)
	go func() {
		_, err := q.Push(context.Background(), "a", bins.Value{Body: body})
		pushed <- err
	}()
	held, err := q.Pull(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, held[0].Ack(t.Context()))
	select {
	case err := <-pushed:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		t.Fatal("a puller made room and the writer still waits")
	}
}

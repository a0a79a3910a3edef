package bins_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

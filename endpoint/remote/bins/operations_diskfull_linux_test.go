package bins_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// After an operation on a full disk and a restart with more space, acknowledged operations are complete, taken items
// are not delivered again, and failed operations had either no effect or their whole effect.
func TestOperationsDiskFull(t *testing.T) {
	t.Parallel()
	disk, address := remotetest.NewSmallDisk(t, 8<<20), remotetest.FreeAddress(t)
	server := startServer(t, disk.Path, address)
	conn, err := natslink.Connect("nats://" + address)
	require.NoError(t, err)
	defer conn.Close()
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	ctx := longContext(t)
	s := &scene{T: t, ctx: ctx, straight: conn, conn: conn, name: "full", kind: none}
	d := runDevice{dev}
	opts := bins.Options{Namespace: "test", Inline: 1000, MaxBytes: 1 << 30}
	store := open(t, conn, opts)
	q := openQueue(t, conn, bins.QueueOptions{Options: opts, Redeliver: 2 * time.Second, Deliveries: 100})
	runOptions := d.options(s, "trainer", conn)
	runOptions.Memory = false
	trainer := d.newTrainer(s, runOptions)
	first := d.weights(s, 0)
	defer first.Close()
	_, err = trainer.Publish(ctx, first)
	require.NoError(t, err)
	for _, bin := range []string{"taken", "deleted"} {
		for _, name := range []string{"1", "2"} {
			_, err := store.Append(ctx, bin, value(name, 3000))
			require.NoError(t, err)
		}
	}
	for _, topic := range []string{"acked.1", "purged.1"} {
		_, err := q.Push(ctx, topic, value(topic, 3000))
		require.NoError(t, err)
	}
	held, err := q.Pull(ctx, 2)
	require.NoError(t, err)
	require.Len(t, held, 2)

	acked := map[string]bool{}
	for i := 0; ; i++ {
		require.Less(t, i, 2000, "the disk has space for fewer")
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		item := fmt.Sprint("f", i)
		_, err := store.Append(short, "filled", value(item, 500+60_000*(i%2)))
		cancel()
		if err != nil {
			break
		}
		acked[item] = true
	}
	require.NotEmpty(t, acked)

	results := map[string]error{}
	var mu sync.Mutex
	var operations sync.WaitGroup
	var items []bins.Item
	second := d.weights(s, 1)
	defer second.Close()
	for name, run := range map[string]func(context.Context) error{
		"append": func(ctx context.Context) error { _, err := store.Append(ctx, "new", value("n", 3000)); return err },
		"put":    func(ctx context.Context) error { _, err := store.Put(ctx, "put", value("p", 3000)); return err },
		"take": func(ctx context.Context) (err error) {
			items, err = store.Take(ctx, "taken", bins.TakeOptions{})
			return err
		},
		"delete":  func(ctx context.Context) error { return store.Delete(ctx, "deleted") },
		"sweep":   func(ctx context.Context) error { _, err := store.Sweep(ctx, time.Hour); return err },
		"push":    func(ctx context.Context) error { _, err := q.Push(ctx, "new.1", value("new.1", 3000)); return err },
		"ack":     held[0].Ack,
		"purge":   func(ctx context.Context) error { return q.Purge(ctx, "purged.>") },
		"publish": func(ctx context.Context) error { _, err := trainer.Publish(ctx, second); return err },
	} {
		operations.Go(func() {
			short, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			err := run(short)
			mu.Lock()
			defer mu.Unlock()
			results[name] = err
		})
	}
	operations.Wait()
	t.Logf("%d items fit, then: %v", len(acked), results)

	server.kill()
	disk.Resize(64 << 20)
	server = startServer(t, disk.Path, address)
	defer server.kill()
	seen := map[string]int{}
	all, err := store.Peek(ctx, "filled")
	require.NoError(t, err)
	for _, item := range namesOf(all) {
		seen[item]++
	}
	for item := range acked {
		require.Equal(t, 1, seen[item], "item %s was acknowledged", item)
	}
	require.LessOrEqual(t, len(seen), len(acked)+1, "plus at most the unanswered one")
	some := func(bin string, err error, want ...string) {
		t.Helper()
		found, peekErr := store.Peek(ctx, bin)
		require.True(t, peekErr == nil || errors.Is(peekErr, bins.ErrNotFound), "%s: %v", bin, peekErr)
		if err == nil {
			require.Equal(t, want, namesOf(found), bin)
		}
	}
	some("new", results["append"], "n")
	some("put", results["put"], "p")
	some("deleted", results["delete"])
	some("taken", results["take"])
	if results["take"] == nil {
		require.Equal(t, []string{"1", "2"}, namesOf(items))
	} else if !errors.Is(results["take"], bins.ErrOutcomeUnknown) {
		some("taken", nil, "1", "2")
	}
	pulled := s.pullAll(q)
	for topic, n := range pulled {
		require.Equal(t, 1, n, topic)
	}
	if results["push"] == nil {
		require.Equal(t, 1, pulled["new.1"])
	}
	if results["ack"] == nil {
		require.Zero(t, pulled[name(held[0].Body)])
	}
	if results["purge"] == nil {
		require.Zero(t, pulled["purged.1"])
	}
	w := d.worker(s, conn)
	defer w.Close()
	version := trainer.Version()
	if results["publish"] == nil {
		require.EqualValues(t, 1, version)
	}
	third := d.weights(s, 2)
	defer third.Close()
	next, err := trainer.Publish(ctx, third)
	require.NoError(t, err)
	require.Greater(t, next, version)
	p, err := w.Await(ctx, next-1)
	require.NoError(t, err)
	require.NoError(t, p.Close())
	require.NoError(t, trainer.Close())
}

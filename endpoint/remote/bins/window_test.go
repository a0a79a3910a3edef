package bins_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rl"
)

// shorten sets the duplicate window of a stream.
func shorten(ctx context.Context, t *testing.T, conn *nats.Conn, stream string, window time.Duration) {
	t.Helper()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	s, err := js.Stream(ctx, stream)
	require.NoError(t, err)
	config := s.CachedInfo().Config
	config.Duplicates = window
	_, err = js.UpdateStream(ctx, config)
	require.NoError(t, err)
}

// A write whose answers are lost for longer than the duplicate window ends with an unknown outcome before the server
// forgets its id. It is stored at most once.
func TestWritesEndBeforeTheDuplicateWindow(t *testing.T) {
	t.Parallel()
	const window = 2 * time.Second
	write := func(call func(context.Context, *bins.Store) error, wanted int) func(context.Context, *testing.T, *nats.Conn, *nats.Conn) (func() error, func()) {
		return func(ctx context.Context, t *testing.T, straight, lossy *nats.Conn) (func() error, func()) {
			open(t, straight, bins.Options{Inline: 1000})
			shorten(ctx, t, straight, "BINS_test", window)
			through := open(t, lossy, bins.Options{Inline: 1000})
			return func() error { return call(ctx, through) }, func() {
				items, err := open(t, straight, bins.Options{Inline: 1000}).Peek(ctx, "a")
				require.NoError(t, err)
				require.Len(t, items, wanted)
			}
		}
	}
	queue := func(ctx context.Context, t *testing.T, conn *nats.Conn, most int64) *bins.Queue {
		q, err := bins.OpenQueue(ctx, conn, bins.QueueOptions{Options: bins.Options{Namespace: "q", MaxBytes: most}})
		require.NoError(t, err)
		return q
	}
	none := uint64(0)
	for name, prepare := range map[string]func(context.Context, *testing.T, *nats.Conn, *nats.Conn) (func() error, func()){
		"append": write(func(ctx context.Context, s *bins.Store) error {
			_, err := s.Append(ctx, "a", value("1", 10))
			return err
		}, 1),
		"append if last": write(func(ctx context.Context, s *bins.Store) error {
			_, err := s.Append(ctx, "a", value("1", 10), bins.IfLast(none))
			return err
		}, 1),
		"put": write(func(ctx context.Context, s *bins.Store) error { _, err := s.Put(ctx, "a", value("1", 10)); return err }, 1),
		"push": func(ctx context.Context, t *testing.T, straight, lossy *nats.Conn) (func() error, func()) {
			q := queue(ctx, t, straight, 1<<20)
			shorten(ctx, t, straight, "QUEUE_q", window)
			through := queue(ctx, t, lossy, 1<<20)
			return func() error { _, err := through.Push(ctx, "a", value("1", 10)); return err }, func() {
				n, err := q.Len(ctx)
				require.NoError(t, err)
				require.Equal(t, 1, n)
			}
		},
		"sample of a worker": func(ctx context.Context, t *testing.T, straight, lossy *nats.Conn) (func() error, func()) {
			trainer, err := rl.NewTrainer(ctx, rl.Options{Conn: straight, Device: remotetest.OpenHost(t), Run: "r", Name: "trainer"})
			require.NoError(t, err)
			t.Cleanup(func() { _ = trainer.Close() })
			shorten(ctx, t, straight, "QUEUE_rl_r", window)
			worker, err := rl.NewWorker(ctx, rl.Options{Conn: lossy, Device: remotetest.OpenHost(t), Run: "r", Name: "worker"})
			require.NoError(t, err)
			t.Cleanup(func() { _ = worker.Close() })
			return func() error { return worker.Add(ctx, value("1", 10)) }, func() {
				n, err := trainer.Waiting(ctx)
				require.NoError(t, err)
				require.Equal(t, 1, n)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := longContext(t)
			address := remotetest.FreeAddress(t)
			_, straight := start(t, natslink.ServerOptions{Listen: address})
			proxy := startFaultProxy(t, address)
			lossy, err := natslink.Connect(proxy.address)
			require.NoError(t, err)
			defer lossy.Close()
			run, check := prepare(ctx, t, straight, lossy)
			proxy.silence(true)
			done := make(chan error, 1)
			go func() { done <- run() }()
			ended := false
			select {
			case err = <-done:
				ended = true
			case <-time.After(window + window/2):
			}
			proxy.silence(false)
			if !ended {
				err = <-done
			}
			if !errors.Is(err, bins.ErrOutcomeUnknown) {
				require.NoError(t, err)
			}
			check()
		})
	}
}

// The ages of bodies and claims are measured with the server's clock, whatever the clock of the client shows.
func TestSweepsUseTheClockOfTheServer(t *testing.T) {
	t.Parallel()
	for name, shift := range map[string]time.Duration{"the client is ahead": -2 * time.Hour, "the client is behind": 2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := longContext(t)
			address := remotetest.FreeAddress(t)
			_, straight := start(t, natslink.ServerOptions{Listen: address})
			proxy := startFaultProxy(t, address)
			proxy.mu.Lock()
			proxy.shift = shift
			proxy.mu.Unlock()
			lossy, err := natslink.Connect(proxy.address)
			require.NoError(t, err)
			defer lossy.Close()
			writer, sweeper := open(t, straight, bins.Options{Inline: 1000}), open(t, lossy, bins.Options{Inline: 1000})
			js, err := jetstream.New(straight)
			require.NoError(t, err)
			store, err := js.ObjectStore(ctx, "BINS_test")
			require.NoError(t, err)
			_, err = store.PutBytes(ctx, "in-flight", make([]byte, 5000)) // its item follows
			require.NoError(t, err)
			sequence, err := writer.Append(ctx, "a", value("1", 10))
			require.NoError(t, err)
			claim := nats.NewMsg("bin-take.test.a")
			claim.Header.Set("Bin-Op", "take")
			claim.Header.Set("Bin-Items", "1")
			claim.Header.Set("Bin-Up-To", strconv.FormatUint(sequence, 10))
			claim.Header.Set("Bin-Before", "0")
			claim.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
			_, err = js.PublishMsg(ctx, claim)
			require.NoError(t, err)
			claimed := func() string {
				msg, err := bins.StreamOf(writer).GetLastMsgForSubject(ctx, "bin-take.test.a")
				require.NoError(t, err)
				return msg.Header.Get("Bin-Op")
			}

			_, err = sweeper.Peek(ctx, "a")
			require.ErrorIs(t, err, bins.ErrNotFound)
			require.NoError(t, sweeper.Drain(ctx))
			require.Equal(t, "take", claimed(), "its taker has seconds to finish it")
			removed, err := sweeper.Sweep(ctx, time.Hour)
			require.NoError(t, err)
			require.Zero(t, removed, "the body is younger than an hour")
			_, err = store.GetInfo(ctx, "in-flight")
			require.NoError(t, err)

			removed, err = sweeper.Sweep(ctx, 0)
			require.NoError(t, err)
			require.Equal(t, 1, removed)
			require.Equal(t, "settled", claimed())
		})
	}
}

package offering_test

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// lateRegistry has functions that continue for a while after their callers have left.
func lateRegistry(t *testing.T, counts *fixture.Counters) *endpoint.Registry {
	t.Helper()
	r := endpoint.NewRegistry()
	linger := func() { time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond) }
	require.NoError(t, endpoint.RegisterStream(r, "numbers", func(ctx context.Context, n int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			defer linger()
			for i := range n {
				if ctx.Err() != nil || !yield(i, nil) {
					return
				}
			}
		}
	}, endpoint.Timeout(50*time.Millisecond)))
	require.NoError(t, endpoint.Register(r, "late", func(context.Context, int) (int, error) {
		counts.Add("late")
		linger()
		return 1, nil
	}))
	return r
}

// However streams and calls end, a worker with one slot stays usable and connected.
func TestOfferSlotsAfterEnds(t *testing.T) {
	drivertest.Leaks(t)
	s, c := offerServer(t, endpoint.ServerOptions{})
	var counts fixture.Counters
	var offers []*endpoint.Offer
	for range 2 {
		o, err := overSocket(t, s).Offer(context.Background(), lateRegistry(t, &counts), endpoint.OfferOptions{Calls: 1})
		require.NoError(t, err)
		offers = append(offers, o)
	}
	var work sync.WaitGroup
	errs := make(chan error, 8*40)
	for range 8 {
		work.Go(func() {
			for range 40 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rand.IntN(20))*time.Millisecond)
				if rand.IntN(2) == 0 {
					_, err := endpoint.Call[int](ctx, c, "late", 1)
					errs <- err
				} else {
					stop := rand.IntN(100)
					for i, err := range endpoint.Stream[int](ctx, c, "numbers", 50) {
						errs <- err
						if i == stop || err != nil {
							break
						}
						if rand.IntN(10) == 0 {
							time.Sleep(time.Millisecond)
						}
					}
				}
				cancel()
			}
		})
	}
	done := make(chan struct{})
	go func() {
		work.Wait()
		close(done)
	}()
	for open := true; open; {
		select {
		case err := <-errs:
			require.True(t, err == nil || errors.Is(err, context.DeadlineExceeded), "%v", err)
		case <-done:
			open = false
		case <-fixture.Timeout():
			require.Fail(t, "a call waits forever")
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), fixture.WaitLimit)
	defer cancel()
	for range 4 {
		_, err := endpoint.Call[int](ctx, c, "late", 1)
		require.NoError(t, err)
	}
	proctest.Eventually(t, fixture.WaitLimit, "no slot is taken", func() bool { return inUse(t, c, "worker_calls") == 0 })
	for _, o := range offers {
		require.NoError(t, o.Err())
		require.NoError(t, o.Close())
	}
}

// Calls of an endpoint with two workers continue while one of them closes its offer.
func TestOfferMovesCallsOnClose(t *testing.T) {
	drivertest.Leaks(t)
	s, c := offerServer(t, endpoint.ServerOptions{})
	var counts fixture.Counters
	stays := overSocket(t, s)
	_, err := stays.Offer(context.Background(), lateRegistry(t, &counts), endpoint.OfferOptions{Calls: 2})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), fixture.WaitLimit)
	defer cancel()
	var work sync.WaitGroup
	closing := make(chan struct{})
	failed := make(chan error, 4)
	for range 4 {
		work.Go(func() {
			for {
				select {
				case <-closing:
					return
				default:
				}
				if _, err := endpoint.Call[int](ctx, c, "late", 1); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	leaves := overSocket(t, s)
	for range 10 {
		o, err := leaves.Offer(ctx, lateRegistry(t, &counts), endpoint.OfferOptions{Calls: 2})
		require.NoError(t, err)
		before := counts.Get("late")
		proctest.Eventually(t, fixture.WaitLimit, "calls run", func() bool { return counts.Get("late") > before+4 })
		require.NoError(t, o.Close())
	}
	close(closing)
	work.Wait()
	select {
	case err := <-failed:
		require.NoError(t, err)
	default:
	}
}

// Callers whose worker closes its client get ErrWorkerGone, whether the function was sending an item or running.
func TestOfferClientClosed(t *testing.T) {
	drivertest.Leaks(t)
	s, c := offerServer(t, endpoint.ServerOptions{})
	running := make(chan struct{}, 2)
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.RegisterStream(r, "numbers", func(context.Context, int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := 0; yield(i, nil); i++ {
				if i == message.StreamWindow-1 {
					running <- struct{}{} // the window is full: the next item waits
				}
			}
		}
	}))
	require.NoError(t, endpoint.Register(r, "wait", func(ctx context.Context, _ int) (int, error) {
		running <- struct{}{}
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}))
	ctx, cancel := context.WithTimeout(context.Background(), fixture.WaitLimit)
	defer cancel()
	for range 10 {
		worker := overSocket(t, s)
		_, err := worker.Offer(ctx, r, endpoint.OfferOptions{})
		require.NoError(t, err)
		read := make(chan struct{})
		ended := make(chan error, 2)
		go func() {
			var last error
			for _, err := range endpoint.Stream[int](ctx, c, "numbers", 0) {
				<-read // the worker has an item that the caller has not taken
				last = err
			}
			ended <- last
		}()
		go func() {
			_, err := endpoint.Call[int](ctx, c, "wait", 0)
			ended <- err
		}()
		<-running
		<-running
		require.NoError(t, worker.Close())
		close(read)
		require.ErrorIs(t, <-ended, endpoint.ErrWorkerGone)
		require.ErrorIs(t, <-ended, endpoint.ErrWorkerGone)
	}
}

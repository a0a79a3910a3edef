package server_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/module"
)

// BenchmarkSwitch measures a version that many watchers on separate connections receive, acquire and close, with the
// owner in the same process: ns/watcher is the total cost of both sides for each.
func BenchmarkSwitch(b *testing.B) {
	for _, watchers := range []int{1, 10, 100} {
		b.Run(fmt.Sprint(watchers), func(b *testing.B) {
			ctx, stop := context.WithCancel(context.Background())
			s := fixture.Serve(b, endpoint.ServerOptions{Logger: fixture.Discard()})
			dev := fixture.Device(b)
			publish := func() {
				sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 3, Bytes: 1 << 12})
				require.NoError(b, err)
				_, err = s.Publish(ctx, "m", sd, endpoint.PublishOptions{})
				require.NoError(b, err)
			}
			publish()
			var seen, ended sync.WaitGroup
			seen.Add(watchers)
			for range watchers {
				c := fixture.SocketClient(b, s)
				w, err := c.Watch(ctx, "m")
				require.NoError(b, err)
				ended.Go(func() {
					defer w.Close()
					for {
						e, err := fixture.NextEvent(ctx, w)
						if err != nil {
							return
						}
						if e.Kind != endpoint.EventPublished {
							continue
						}
						h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
						if err != nil {
							b.Error(err)
							return
						}
						h.Close()
						seen.Done()
					}
				})
			}
			seen.Wait()
			for b.Loop() {
				seen.Add(watchers)
				publish()
				seen.Wait()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*watchers), "ns/watcher")
			stop()
			ended.Wait()
		})
	}
}

package rl_test

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rl"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// BenchmarkPublish measures the time from the start of Publish until a worker has the tensors. It alternates with bare
// NATS moving the same bytes: an object, a pointer to it, the notification, and the object's bytes. Server and owner
// are separate processes. "heap/model" is the maximum growth of this process's Go heap while a version is published and
// received, in models: trainer and worker keep the model in shared memory, so the heap holds only pieces of it.
func BenchmarkPublish(b *testing.B) {
	for _, size := range []int{1 << 20, 64 << 20} {
		for _, shared := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dMiB/shared=%v", size>>20, shared), func(b *testing.B) { benchPublish(b, size, shared) })
		}
	}
}

func benchPublish(b *testing.B, size int, shared bool) {
	site := newSite(b)
	ctx := b.Context()
	var owner *endpoint.Client
	if shared {
		owner = site.owner(b)
	}
	opts := site.options(b, "trainer", owner)
	opts.LocalOnly = shared
	trainer, err := rl.NewTrainer(ctx, opts)
	require.NoError(b, err)
	defer trainer.Close()
	opts = site.options(b, "worker", owner)
	worker, err := rl.NewWorker(ctx, opts)
	require.NoError(b, err)
	defer worker.Close()
	bare := newBare(b, site)
	body := make([]byte, size)
	var ours, theirs []time.Duration
	var heaps []float64
	for i := range b.N {
		sd := filled(b, site.dev, size)
		stop := watchHeap()
		start := time.Now()
		version, err := trainer.Publish(ctx, sd)
		require.NoError(b, err)
		p, err := worker.Await(ctx, version-1)
		require.NoError(b, err)
		ours = append(ours, time.Since(start))
		heaps = append(heaps, stop()/float64(size))
		require.Equal(b, shared, p.Shared())
		require.NoError(b, p.Close())
		require.NoError(b, sd.Close())
		theirs = append(theirs, bare.round(b, i, body))
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	median := func(d []time.Duration) float64 { return float64(d[len(d)/2].Nanoseconds()) / 1e6 }
	b.ReportMetric(median(ours), "ms")
	b.ReportMetric(median(theirs), "bare-ms")
	b.ReportMetric(median(ours)/median(theirs), "ratio")
	b.ReportMetric(slices.Max(heaps), "heap/model")
}

// watchHeap samples the live and unswept objects of the Go heap. stop returns the maximum growth in bytes.
func watchHeap() (stop func() float64) {
	runtime.GC()
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	read := func() float64 { metrics.Read(heap); return float64(heap[0].Value.Uint64()) }
	first, most, ended, done := read(), 0.0, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			most = max(most, read()-first)
			select {
			case <-ended:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() float64 { close(ended); <-done; return most }
}

func filled(b *testing.B, dev driver.Device, size int) *module.StateDict {
	b.Helper()
	t, err := tensor.Zeros(dev, tensor.Uint8, tensor.Shape{int64(size)})
	require.NoError(b, err)
	sd := module.NewStateDict()
	require.NoError(b, sd.Set("w", t))
	return sd
}

// bareNATS is the equivalent of this package in an application that uses NATS directly.
type bareNATS struct {
	objects jetstream.ObjectStore
	kv      jetstream.KeyValue
	news    jetstream.MessagesContext
}

func newBare(b *testing.B, site *site) *bareNATS {
	b.Helper()
	js, err := jetstream.New(site.connect(b))
	require.NoError(b, err)
	n := &bareNATS{}
	n.objects, err = js.CreateObjectStore(b.Context(), jetstream.ObjectStoreConfig{Bucket: "bare"})
	require.NoError(b, err)
	n.kv, err = js.CreateKeyValue(b.Context(), jetstream.KeyValueConfig{Bucket: "bare"})
	require.NoError(b, err)
	stream, err := js.Stream(b.Context(), "KV_bare")
	require.NoError(b, err)
	consumer, err := stream.OrderedConsumer(b.Context(), jetstream.OrderedConsumerConfig{})
	require.NoError(b, err)
	n.news, err = consumer.Messages()
	require.NoError(b, err)
	b.Cleanup(n.news.Stop)
	return n
}

func (n *bareNATS) round(b *testing.B, i int, body []byte) time.Duration {
	ctx, name := b.Context(), fmt.Sprint(i)
	start := time.Now()
	_, err := n.objects.PutBytes(ctx, name, body)
	require.NoError(b, err)
	_, err = n.kv.PutString(ctx, "latest", name)
	require.NoError(b, err)
	msg, err := n.news.Next()
	require.NoError(b, err)
	_, err = n.objects.GetBytes(ctx, string(msg.Data()))
	require.NoError(b, err)
	d := time.Since(start)
	require.NoError(b, n.objects.Delete(ctx, name))
	return d
}

package server_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// BenchmarkPublishTensors measures a client's publication for each tensor, both sides together; it must not grow with
// their number.
func BenchmarkPublishTensors(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := fixture.Serve(b, endpoint.ServerOptions{Logger: fixture.Discard()})
			dev := fixture.Device(b)
			c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: s.Socket(), Devices: []driver.Device{dev}})
			require.NoError(b, err)
			defer c.Close()
			for b.Loop() {
				b.StopTimer()
				sd := smallTensors(b, dev, n)
				b.StartTimer()
				_, err := c.Publish(context.Background(), "small", sd, endpoint.PublishOptions{})
				require.NoError(b, err)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/tensor")
		})
	}
}

// smallTensors returns n tensors in one storage.
func smallTensors(b *testing.B, dev driver.Device, n int) *module.StateDict {
	b.Helper()
	x, err := tensor.Zeros(dev, tensor.Float32, tensor.Shape{8})
	require.NoError(b, err)
	sd := module.NewStateDict()
	for i := range n {
		require.NoError(b, sd.Set(fmt.Sprintf("layer.%d.weight", i), x.Alias()))
	}
	require.NoError(b, x.Close())
	return sd
}

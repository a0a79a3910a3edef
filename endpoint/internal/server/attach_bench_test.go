package server_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
)

// BenchmarkAttach acquires and closes a model of another process, for several numbers of tensors and bytes.
func BenchmarkAttach(b *testing.B) {
	for _, size := range []struct {
		tensors int
		bytes   int64
	}{{1, 1 << 20}, {100, 1 << 20}, {1000, 1 << 20}, {10000, 4 << 20}, {1000, 64 << 20}, {1000, 1 << 30}} {
		b.Run(fmt.Sprintf("tensors=%d/MiB=%d", size.tensors, size.bytes>>20), func(b *testing.B) {
			o, socket := fixture.Owner(b)
			o.Publish(fixture.Model{Name: "m", Tensors: size.tensors, Bytes: size.bytes})
			c := attacher(b, socket)
			b.ReportAllocs()
			for b.Loop() {
				h, err := c.Acquire(context.Background(), "m", endpoint.AcquireOptions{})
				require.NoError(b, err)
				h.Close()
			}
		})
	}
}

// BenchmarkPing measures an empty request to another process.
func BenchmarkPing(b *testing.B) {
	_, socket := fixture.Owner(b)
	c := attacher(b, socket)
	b.ReportAllocs()
	for b.Loop() {
		_, err := c.Ping(context.Background())
		require.NoError(b, err)
	}
}

// attacher returns a client in this process.
func attacher(b *testing.B, socket string) *endpoint.Client {
	dev, err := host.Open()
	require.NoError(b, err)
	b.Cleanup(func() { dev.Close() })
	c, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{dev}})
	require.NoError(b, err)
	b.Cleanup(func() { c.Close() })
	return c
}

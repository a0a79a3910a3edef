package mirror_test

import (
	"crypto/sha256"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
)

// figureBytes is the size of the model.
const figureBytes = 256 << 20

// BenchmarkFiguresPull compares mirroring a model with raw TCP, alternating in one run, each side in a separate
// process:
//
//	go test -run '^$' -bench FiguresPull -benchtime 7x ./mirror
//
// "first" uses new shared memory, as for the first version of a model. "again" reuses the memory of a version without
// holders, as later versions do. "ratio" is the median ratio to raw TCP with the same number of connections into warm
// memory. "ratio-hashed" is the ratio to raw TCP plus the SHA-256 of each MiB, because a mirror verifies the digests of
// all tensors.
func BenchmarkFiguresPull(b *testing.B) {
	from := remotetest.StartOwner(b, "--model", fmt.Sprintf("m=%d", figureBytes))
	to := remotetest.StartOwner(b)
	gw := remotetest.StartGateway(b, from.Socket)
	gw.Attached(b)
	floor := remotetest.StartFloor(b)
	warm := make([]byte, figureBytes)
	for name, dev := range figureDevices(b) {
		b.Run(name, func(b *testing.B) {
			target := dial(b, to.Socket, dev)
			rounds(b, figureBytes, func(round int) (func() error, error) {
				return pullOnce(b, mirror.Options{Source: gw.HTTP() + "/m", Name: fmt.Sprintf("m%d", round), Owner: target, Device: dev})
			}, map[string]func() error{
				"":        func() error { return down(floor.TCP, warm, func([]byte) {}) },
				"-hashed": func() error { return down(floor.TCP, warm, func(part []byte) { sha256.Sum256(part) }) },
			})
		})
	}
}

// figureDevices returns devices with new memory and with reused memory.
func figureDevices(b *testing.B) map[string]driver.Device {
	b.Helper()
	dev, err := host.Open(host.Lazy()) // as the command does
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, dev.Close()) })
	pool := host.NewPool(dev, host.PoolOptions{Idle: time.Hour})
	b.Cleanup(func() { require.NoError(b, pool.Close()) })
	return map[string]driver.Device{"first": dev, "again": pool}
}

// pullOnce mirrors a model. undo removes it from the owner.
func pullOnce(b *testing.B, options mirror.Options) (undo func() error, err error) {
	b.Helper()
	m, err := mirror.New(options)
	if err != nil {
		return nil, err
	}
	result, err := m.Pull(b.Context())
	if err != nil {
		return nil, err
	}
	return func() error { return options.Owner.Withdraw(b.Context(), result.Name) }, m.Close()
}

// rounds measures the throughput of ours and of the floors alternately, and reports the medians and their ratios. The
// first round is a warm-up and is not counted. undo is not measured.
func rounds(b *testing.B, bytes int64, ours func(round int) (undo func() error, err error), floors map[string]func() error) {
	b.Helper()
	timed := func(do func() error) float64 {
		begin := time.Now()
		require.NoError(b, do())
		return float64(bytes) / 1e9 / time.Since(begin).Seconds()
	}
	var mine []float64
	least, ratios := map[string][]float64{}, map[string][]float64{}
	for round := range b.N + 1 {
		if round == 1 {
			b.ResetTimer()
		}
		speed := map[string]float64{}
		for name, floor := range floors {
			speed[name] = timed(floor)
		}
		var undo func() error
		here := timed(func() (err error) { undo, err = ours(round); return err })
		require.NoError(b, undo())
		if round == 0 {
			continue
		}
		mine = append(mine, here)
		for name, floor := range speed {
			least[name], ratios[name] = append(least[name], floor), append(ratios[name], here/floor)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(remotetest.Median(mine), "GB/s")
	for name := range floors {
		b.ReportMetric(remotetest.Median(least[name]), "floor"+name+"-GB/s")
		b.ReportMetric(remotetest.Median(ratios[name]), "ratio"+name)
	}
}

// down downloads data from the floor into memory with one part per connection, and calls then with each part.
func down(address string, data []byte, then func(part []byte)) error {
	part := len(data) / mirror.DefaultConnections
	errs := make(chan error)
	for i := range mirror.DefaultConnections {
		go func() {
			mine := data[i*part : (i+1)*part]
			conn, err := net.Dial("tcp", address)
			if err == nil {
				defer conn.Close()
				for at := 0; at < len(mine) && err == nil; at += 1 << 20 {
					piece := mine[at:min(at+1<<20, len(mine))]
					err = remotetest.Down(conn, len(piece), piece)
					then(piece)
				}
			}
			errs <- err
		}()
	}
	for range mirror.DefaultConnections {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

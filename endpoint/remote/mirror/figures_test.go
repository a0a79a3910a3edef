package mirror_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
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
// memory. "ratio-blake3" and "ratio-sha256" are the ratios to raw TCP plus the hash of each MiB, because a mirror verifies
// all bytes. It uses BLAKE3 here.
func BenchmarkFiguresPull(b *testing.B) {
	from := remotetest.StartOwner(b, "--model", fmt.Sprintf("m=%d", figureBytes))
	to := remotetest.StartOwner(b)
	gw := remotetest.StartGateway(b, from.Socket)
	gw.Attached(b)
	floor := remotetest.StartFloor(b)
	warm := make([]byte, figureBytes)
	for name, dev := range figureDevices(b) {
		b.Run(name, func(b *testing.B) {
			target := remotetest.Dial(b, to.Socket, dev)
			remotetest.Throughput(b, figureBytes, func(round int) (func() error, error) {
				return pullOnce(b, mirror.Options{Source: gw.HTTP() + "/m", Name: fmt.Sprintf("m%d", round), Owner: target, Device: dev})
			}, map[string]func() error{
				"":        func() error { return down(floor.TCP, warm, func([]byte) {}) },
				"-sha256": func() error { return down(floor.TCP, warm, hashing(modelwire.SHA256)) },
				"-blake3": func() error { return down(floor.TCP, warm, hashing(modelwire.BLAKE3)) },
			})
		})
	}
}

// hashing returns a function that hashes parts.
func hashing(h modelwire.Hash) func(part []byte) {
	return func(part []byte) {
		one := h.New()
		_, _ = one.Write(part) // a hash never fails
		one.Sum(nil)
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

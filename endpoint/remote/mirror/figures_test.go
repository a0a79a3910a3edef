package mirror_test

import (
	"crypto/sha256"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// figureBytes is the size of the model that is moved.
const figureBytes = 256 << 20

// BenchmarkFiguresPull mirrors a model beside the least that could be done, in turns and in the same run, each side a
// process of its own:
//
//	go test -run '^$' -bench FiguresPull -benchtime 7x ./mirror
//
// "ratio" is the median of the ratios of the rounds to raw TCP on as many connections into memory that is there and
// warm. "ratio-hashed" is to raw TCP into new shared memory whose SHA-256 is computed, as a mirror has to do it. The
// floors ask for each MiB by itself, so the second can be beaten.
func BenchmarkFiguresPull(b *testing.B) {
	from := remotetest.StartOwner(b, "--model", fmt.Sprintf("m=%d", figureBytes))
	to := remotetest.StartOwner(b)
	gw := remotetest.StartGateway(b, from.Socket)
	attached(b, gw)
	floor := remotetest.StartFloor(b)
	dev := openHost(b)
	target := dial(b, to.Socket, dev)
	warm := make([]byte, figureBytes)
	var ours, raw, hashed []float64
	round := -1 // the first pays for what is made once
	timed := func(list *[]float64, do func() error) {
		begin := time.Now()
		require.NoError(b, do())
		if round > 0 {
			*list = append(*list, figureBytes/1e9/time.Since(begin).Seconds())
		}
	}
	for round = range b.N + 1 {
		if round == 1 {
			b.ResetTimer()
		}
		timed(&raw, func() error { return down(floor.TCP, warm, nil) })
		timed(&hashed, func() error { return downIntoSlab(floor.TCP, dev) })
		name := fmt.Sprintf("m%d", round)
		timed(&ours, func() error {
			m, err := mirror.New(mirror.Options{Source: gw.HTTP() + "/m", Name: name, Owner: target, Device: dev})
			if err != nil {
				return err
			}
			if _, err = m.Pull(b.Context()); err != nil {
				return err
			}
			return m.Close()
		})
		require.NoError(b, target.Withdraw(b.Context(), name))
	}
	ratio := func(floor []float64) float64 {
		var list []float64
		for i := range ours {
			list = append(list, ours[i]/floor[i])
		}
		return median(list)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ours), "GB/s")
	b.ReportMetric(median(raw), "floor-GB/s")
	b.ReportMetric(median(hashed), "floor-hashed-GB/s")
	b.ReportMetric(ratio(raw), "ratio")
	b.ReportMetric(ratio(hashed), "ratio-hashed")
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// down takes bytes from the floor into memory, a part by each connection, and hands each part to then.
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
					if then != nil {
						then(piece)
					}
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

func downIntoSlab(address string, dev driver.Device) error {
	sd, err := module.New(dev, []module.NamedSpec{{Name: "all", DType: tensor.Uint8, Shape: tensor.Shape{figureBytes}}})
	if err != nil {
		return err
	}
	defer sd.Close()
	all, _ := sd.Get("all")
	data, err := tensor.RawData(all)
	if err != nil {
		return err
	}
	return down(address, data, func(part []byte) { sha256.Sum256(part) })
}

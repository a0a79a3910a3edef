package mirror_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/module"
)

// BenchmarkFiguresPlaces mirrors a model from a bucket and from a registry beside a plain download of the same file
// from the same server into new memory, by as many connections and ranges, in turns and in the same run:
//
//	go test -run '^$' -bench FiguresPlaces -benchtime 7x ./mirror
//
// The servers are in this process, for both sides alike.
func BenchmarkFiguresPlaces(b *testing.B) {
	const size = 128 << 20
	for name, open := range map[string]func(testing.TB) *place{
		"s3":  func(t testing.TB) *place { return bucketPlace(t, honest) },
		"oci": func(t testing.TB) *place { return registryPlace(t, false, honest) },
	} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			require.NoError(b, module.SynthesizeFile(filepath.Join(dir, "model.safetensors"), module.Synthetic{Tensors: 50, Bytes: size, Seed: 1}))
			p := open(b)
			p.put(b, dir)
			data, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
			require.NoError(b, err)
			url := os.Getenv("AWS_ENDPOINT_URL_S3") + "/models/org/m/model.safetensors"
			if name == "oci" {
				host, _, _ := strings.Cut(strings.TrimPrefix(p.address, "oci://"), "/")
				url = "http://" + host + "/v2/org/m/blobs/sha256:" + sha256Hex(data)
			}
			to := remotetest.StartOwner(b)
			dev := openHost(b)
			target := dial(b, to.Socket, dev)
			var ours, floor, ratios []float64
			for round := range b.N + 1 {
				begin := time.Now()
				require.NoError(b, download(b.Context(), url, int64(len(data))))
				plain := time.Since(begin).Seconds()
				begin = time.Now()
				m, err := mirror.New(mirror.Options{Source: p.address, Owner: target, Device: dev})
				require.NoError(b, err)
				_, err = m.Pull(b.Context())
				require.NoError(b, err)
				require.NoError(b, m.Close())
				took := time.Since(begin).Seconds()
				require.NoError(b, target.Withdraw(b.Context(), "m"))
				if round > 0 { // the first pays for what is made once
					ours, floor, ratios = append(ours, size/1e9/took), append(floor, size/1e9/plain), append(ratios, plain/took)
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(ours), "GB/s")
			b.ReportMetric(median(floor), "floor-GB/s")
			b.ReportMetric(median(ratios), "ratio")
		})
	}
}

// download fetches a file into new memory, several ranges at once.
func download(ctx context.Context, url string, size int64) error {
	data := make([]byte, size)
	errs := make(chan error)
	pieces := (size + mirror.DefaultRangeBytes - 1) / mirror.DefaultRangeBytes
	for w := range int64(mirror.DefaultConnections) {
		go func() {
			var err error
			for i := w; i < pieces && err == nil; i += mirror.DefaultConnections {
				begin, end := i*mirror.DefaultRangeBytes, min((i+1)*mirror.DefaultRangeBytes, size)
				var r *http.Request
				if r, err = http.NewRequestWithContext(ctx, http.MethodGet, url, nil); err != nil {
					break
				}
				r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", begin, end-1))
				var resp *http.Response
				if resp, err = http.DefaultClient.Do(r); err == nil {
					_, err = io.ReadFull(resp.Body, data[begin:end])
					resp.Body.Close()
				}
			}
			errs <- err
		}()
	}
	var first error
	for range mirror.DefaultConnections {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

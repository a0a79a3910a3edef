package placestest_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/module"
)

// BenchmarkFiguresPlaces compares mirroring a model from a bucket and from a registry with a plain download of the same
// file into new memory, from the same server, with the same number of connections and ranges, alternating in one run:
//
//	go test -run '^$' -bench FiguresPlaces -benchtime 7x .
//
// The servers run in this process for both. "first" and "again" are as in BenchmarkFiguresPull. A registry provides the
// file's digest, which a mirror verifies; "ratio-hashed" compares with a download that computes the digest too.
func BenchmarkFiguresPlaces(b *testing.B) {
	const size = 128 << 20
	for name, open := range map[string]func(testing.TB) *place{
		"s3":  func(t testing.TB) *place { return bucketPlace(t, honest) },
		"oci": func(t testing.TB) *place { return registryPlace(t, false, honest) },
	} {
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
		for memory, dev := range figureDevices(b) {
			b.Run(name+"/"+memory, func(b *testing.B) {
				target := remotetest.Dial(b, to.Socket, dev)
				plain := func() ([]byte, error) { return download(b.Context(), url, int64(len(data))) }
				floors := map[string]func() error{"": func() error { _, err := plain(); return err }}
				if name == "oci" {
					floors["-hashed"] = func() error {
						got, err := plain()
						sha256.Sum256(got)
						return err
					}
				}
				remotetest.Throughput(b, size, func(int) (func() error, error) {
					return pullOnce(b, mirror.Options{Source: p.address, Owner: target, Device: dev})
				}, floors)
			})
		}
	}
}

// download fetches a file into new memory with concurrent range requests.
func download(ctx context.Context, url string, size int64) ([]byte, error) {
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
	return data, first
}

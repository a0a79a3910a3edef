package message

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkManifest measures encoding and decoding 10,000 tensors.
func BenchmarkManifest(b *testing.B) {
	const n = 10_000
	tensors := sampleTensors(n)
	// It reports processor time, including garbage collection, which depends little on other load.
	perTensor := func(b *testing.B, begin time.Duration) {
		b.ReportMetric(float64(processorTime(b)-begin)/float64(b.N)/n, "cpu-ns/tensor")
	}
	encode := func(b *testing.B) []byte {
		m, err := NewManifest(tensors, sampleStorages(), map[string]string{"format": "pt"})
		if err != nil {
			b.Fatal(err)
		}
		body, err := Marshal(Acquired{Lease: 1, Name: "m", Version: 1, Manifest: *m})
		if err != nil {
			b.Fatal(err)
		}
		return body
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		begin := processorTime(b)
		for b.Loop() {
			encode(b)
		}
		perTensor(b, begin)
	})
	b.Run("decode", func(b *testing.B) {
		body := encode(b)
		b.ReportMetric(float64(len(body))/n, "bytes/tensor")
		b.ReportAllocs()
		begin := processorTime(b)
		for b.Loop() {
			var a Acquired
			if err := Unmarshal(body, &a); err != nil {
				b.Fatal(err)
			}
			got, err := a.Manifest.Decode()
			if err != nil || len(got) != n {
				b.Fatal(err)
			}
		}
		perTensor(b, begin)
	})
}

// processorTime returns the processor time of this process.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

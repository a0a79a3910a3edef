package bulk

import (
	"compress/zlib"
	"io"
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // the other one that Python clients can choose
)

// What gRPC calls deflate is the format of zlib (RFC 1950). grpc-go has none, and refuses clients that use it.
func init() { encoding.RegisterCompressor(deflate{}) }

// deflate is the compressor of gRPC by that name.
type deflate struct{}

// Name implements encoding.Compressor.
func (deflate) Name() string { return "deflate" }

var writers = sync.Pool{New: func() any { return zlib.NewWriter(nil) }}

// Compress implements encoding.Compressor.
func (deflate) Compress(w io.Writer) (io.WriteCloser, error) {
	z := writers.Get().(*zlib.Writer)
	z.Reset(w)
	return &pooledWriter{z}, nil
}

// Decompress implements encoding.Compressor.
func (deflate) Decompress(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) }

// pooledWriter gives its writer back when it is closed.
type pooledWriter struct{ *zlib.Writer }

// Close implements io.Closer.
func (w *pooledWriter) Close() error {
	err := w.Writer.Close()
	writers.Put(w.Writer)
	return err
}

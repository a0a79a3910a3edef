package bulk

import (
	"compress/zlib"
	"io"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip" // registers gzip, which Python clients can choose too
)

// gRPC's "deflate" is the zlib format (RFC 1950). grpc-go does not implement it and refuses clients that use it.
func init() {
	encoding.RegisterCompressor(bounded{deflate{}})
	encoding.RegisterCompressor(bounded{encoding.GetCompressor(gzip.Name)})
}

// deflate implements gRPC's "deflate" compressor.
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

// pooledWriter returns its writer to the pool when it is closed.
type pooledWriter struct{ *zlib.Writer }

// Close implements io.Closer.
func (w *pooledWriter) Close() error {
	err := w.Writer.Close()
	writers.Put(w.Writer)
	return err
}

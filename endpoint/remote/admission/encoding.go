package admission

import (
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// ErrEncoding reports a request with a Content-Encoding that the gateway does not read.
var ErrEncoding = NewError(NotServed, "unknown Content-Encoding")

// maxWindow limits the memory of a zstd decoder. RFC 8878 recommends that decoders support 8 MiB.
const maxWindow = 8 << 20

// Decode returns a reader of the decompressed bytes of an HTTP body: gzip, deflate (the zlib format, as HTTP defines it)
// or zstd. It returns r itself if there is no encoding. The caller charges or limits the decompressed bytes, and closes
// the reader. Reading fails if the compressed data is damaged or incomplete.
func Decode(r io.Reader, encoding string) (io.ReadCloser, error) {
	switch encoding {
	case "", "identity":
		return io.NopCloser(r), nil
	case "gzip":
		return gzip.NewReader(r)
	case "deflate":
		return zlib.NewReader(r)
	case "zstd":
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	if len(encoding) > 64 {
		encoding = encoding[:64]
	}
	return nil, fmt.Errorf("%w %q: use gzip, deflate or zstd", ErrEncoding, encoding)
}

package admission

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// ErrEncoding reports a request with a Content-Encoding that the gateway does not read.
var ErrEncoding = NewError(NotServed, "unknown Content-Encoding")

// maxWindow limits the memory of a zstd decoder. RFC 8878 recommends that decoders support 8 MiB.
const maxWindow = 8 << 20

// Decode returns a reader of the decompressed bytes of an HTTP body: gzip, deflate (the zlib format, as HTTP defines it)
// or zstd. It returns r itself if there is no encoding. The memory of the decoder is charged to c, which the caller closes after
// the reader. The caller charges or limits the decompressed bytes. The reader ends with io.EOF only after r has ended: reading fails if the compressed data is damaged or
// incomplete, if other bytes follow it, and with the error of r.
func (c *Charge) Decode(r io.Reader, encoding string) (io.ReadCloser, error) {
	encoding = strings.ToLower(encoding)
	memory := int64(deflateBytes)
	switch encoding {
	case "", "identity":
		return io.NopCloser(r), nil
	case "zstd":
		memory = zstdBytes
	}
	if err := c.Add(memory); err != nil {
		return nil, err
	}
	switch encoding {
	case "gzip", "x-gzip":
		return gzip.NewReader(r)
	case "deflate":
		source := bufio.NewReader(r)
		z, err := zlib.NewReader(source)
		if err != nil {
			return nil, err
		}
		return &zlibReader{z, source}, nil
	case "zstd":
		d, err := zstd.NewReader(&windows{r: r, charge: c}, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
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

// errTrailing reports bytes behind compressed data.
var errTrailing = errors.New("bytes follow the compressed data")

// zlibReader decompresses to the end of its source. A zlib reader alone stops behind its data.
type zlibReader struct {
	io.ReadCloser
	source *bufio.Reader
}

// Read implements io.Reader.
func (z *zlibReader) Read(p []byte) (int, error) {
	n, err := z.ReadCloser.Read(p)
	if !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return n, err
	}
	if _, err := z.source.ReadByte(); err == nil {
		return n, errTrailing
	} else if !errors.Is(err, io.EOF) {
		return n, err
	}
	return n, io.EOF
}

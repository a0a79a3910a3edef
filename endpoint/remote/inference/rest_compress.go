package inference

import (
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
)

// When compressing a response pays: many clients accept it without having asked for it.
const (
	compressFrom  = 4 << 10
	compressProbe = 64 << 10
	compressGain  = 0.9
)

// compressor is a writer that can be used again.
type compressor interface {
	io.WriteCloser
	Reset(w io.Writer)
}

// compressors are those of HTTP's names. What it calls deflate is the format of zlib.
var compressors = map[string]*sync.Pool{
	"gzip":    {New: func() any { z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed); return z }},
	"deflate": {New: func() any { z, _ := zlib.NewWriterLevel(nil, zlib.BestSpeed); return z }},
}

// chooseEncoding is how a response is compressed; empty for not at all: where the client does not accept it, where it
// would not pay, and on the way to the same host, unless the client compresses itself.
func chooseEncoding(r *http.Request, parts [][]byte, size int) string {
	if size < compressFrom || isLocal(httpPeer(r)) && r.Header.Get("Content-Encoding") == "" {
		return ""
	}
	encoding := accepted(r.Header.Get("Accept-Encoding"))
	if encoding == "" {
		return ""
	}
	var probed, packed counter
	compress(&packed, encoding, probe(parts, &probed))
	if float64(packed) > compressGain*float64(probed) {
		return ""
	}
	return encoding
}

// counter counts what is written to it.
type counter int

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// probe is the beginning of the parts, and counts it.
func probe(parts [][]byte, probed *counter) [][]byte {
	var list [][]byte
	for _, p := range parts {
		p = p[:min(len(p), compressProbe-int(*probed))]
		list = append(list, p)
		*probed += counter(len(p))
	}
	return list
}

// accepted is the first encoding that a client accepts and that there is; empty for none.
func accepted(header string) string {
	for _, word := range strings.Split(header, ",") {
		name, quality, _ := strings.Cut(strings.TrimSpace(word), ";")
		if name = strings.TrimSpace(name); compressors[name] != nil && strings.TrimSpace(quality) != "q=0" {
			return name
		}
	}
	return ""
}

func compress(w io.Writer, encoding string, parts [][]byte) {
	pool := compressors[encoding]
	z := pool.Get().(compressor)
	defer pool.Put(z)
	z.Reset(w)
	for _, p := range parts {
		if _, err := z.Write(p); err != nil {
			return // the client has gone
		}
	}
	_ = z.Close() // as above
}

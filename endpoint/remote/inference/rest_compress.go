package inference

import (
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
)

// Limits that decide whether compressing a response pays: many clients accept compression without having requested it.
const (
	compressFrom  = 4 << 10
	compressProbe = 64 << 10
	compressGain  = 0.9
)

// compressor is a writer that can be reset and reused.
type compressor interface {
	io.WriteCloser
	Reset(w io.Writer)
}

// compressors maps HTTP's encoding names to compressors. HTTP's "deflate" is the zlib format.
var compressors = map[string]*sync.Pool{
	"gzip":    {New: func() any { z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed); return z }},
	"deflate": {New: func() any { z, _ := zlib.NewWriterLevel(nil, zlib.BestSpeed); return z }},
}

// chooseEncoding returns the encoding of a response. It returns "" if the client does not accept compression, if
// compression would not pay, or if the client is on this host and did not compress its request.
func chooseEncoding(r *http.Request, parts [][]byte, size int) string {
	if size < compressFrom || local.Addr(admission.PeerFrom(r.Context())) && r.Header.Get("Content-Encoding") == "" {
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

// counter counts the bytes written to it.
type counter int

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// probe returns the beginning of the parts and adds its size to probed.
func probe(parts [][]byte, probed *counter) [][]byte {
	var list [][]byte
	for _, p := range parts {
		p = p[:min(len(p), compressProbe-int(*probed))]
		list = append(list, p)
		*probed += counter(len(p))
	}
	return list
}

// accepted returns the first supported encoding that a client accepts, or "".
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
			return // the client has left
		}
	}
	_ = z.Close() // as above
}

package bulk

import (
	"errors"
	"io"
	"runtime"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
)

// maxInflating limits the total size of the messages that this process is inflating. grpc-go inflates a whole message
// before its memory can be charged.
const maxInflating = 256 << 20

// errInflating is returned if too many large messages are inflated at once.
var errInflating = errors.New("too many compressed messages at once: try again later")

var inflating atomic.Int64 // bytes

// bounded is a compressor that keeps inflated messages within maxInflating.
type bounded struct{ encoding.Compressor }

// Decompress implements encoding.Compressor.
func (b bounded) Decompress(r io.Reader) (io.Reader, error) {
	plain, err := b.Compressor.Decompress(r)
	if err != nil {
		return nil, err
	}
	taken := new(atomic.Int64)
	i := &inflater{r: plain, taken: taken}
	// grpc-go stops reading a message that is over its limit.
	runtime.AddCleanup(i, func(taken *atomic.Int64) { inflating.Add(-taken.Swap(0)) }, taken)
	return i, nil
}

// inflater reads a message while it is inflated.
type inflater struct {
	r     io.Reader
	taken *atomic.Int64
}

// Read implements io.Reader.
func (i *inflater) Read(p []byte) (int, error) {
	n, err := i.r.Read(p)
	i.taken.Add(int64(n))
	if inflating.Add(int64(n)) > maxInflating && err == nil {
		err = errInflating
	}
	if err != nil { // the message is complete or invalid
		inflating.Add(-i.taken.Swap(0))
	}
	return n, err
}

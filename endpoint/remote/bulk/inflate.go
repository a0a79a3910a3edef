package bulk

import (
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// maxInflating limits the total size of the messages that this process has inflated and not charged yet. grpc-go inflates a whole
// message before its memory can be charged.
var maxInflating atomic.Int64

func init() { maxInflating.Store(256 << 20) }

// chargesInflated reports that the messages of this process are charged: LimitInflating was called.
var chargesInflated atomic.Bool

// LimitInflating sets the limit, in bytes, of all messages that this process inflates at once. They count until the codec of this
// package has charged them, so all messages of the process need it. The compressors of grpc-go have no state of a server: the last
// call is valid for all servers.
func LimitInflating(bytes int64) {
	maxInflating.Store(bytes)
	chargesInflated.Store(true)
}

// errInflating is returned if too many large messages are inflated at once.
var errInflating = errors.New("too many compressed messages at once: try again later")

var (
	inflating atomic.Int64 // bytes
	// inflated holds the sizes of messages that the codec has not received yet, by the address of their first byte: grpc-go passes
	// the memory that it has inflated to the codec, and nothing else.
	inflated sync.Map // of *byte to *atomic.Int64
)

// bounded is a compressor that keeps inflated messages within maxInflating.
type bounded struct{ encoding.Compressor }

// Decompress implements encoding.Compressor.
func (b bounded) Decompress(r io.Reader) (io.Reader, error) {
	plain, err := b.Compressor.Decompress(r)
	if err != nil {
		return nil, err
	}
	return &inflater{r: plain, size: new(atomic.Int64)}, nil
}

// inflatedMessage identifies a message by its first byte.
type inflatedMessage struct {
	first *byte
	size  *atomic.Int64
}

// inflater reads a message while it is inflated.
type inflater struct {
	r     io.Reader
	size  *atomic.Int64
	first *byte
}

// Read implements io.Reader.
func (i *inflater) Read(p []byte) (int, error) {
	n, err := i.r.Read(p)
	if n > 0 && i.first == nil {
		i.first = &p[0]
		inflated.Store(i.first, i.size)
		// grpc-go drops a message that is over its limit.
		runtime.AddCleanup(i, func(a inflatedMessage) {
			if inflated.CompareAndDelete(a.first, a.size) {
				inflating.Add(-a.size.Load())
			}
		}, inflatedMessage{i.first, i.size})
	}
	i.size.Add(int64(n))
	if inflating.Add(int64(n)) > maxInflating.Load() && err == nil {
		err = errInflating
	}
	if err != nil && (!errors.Is(err, io.EOF) || !chargesInflated.Load()) {
		settle(i.first)
	}
	return n, err
}

// settle ends the account of an inflated message and returns its size; 0 if it has none.
func settle(first *byte) int64 {
	if first == nil {
		return 0
	}
	size, found := inflated.LoadAndDelete(first)
	if !found {
		return 0
	}
	n := size.(*atomic.Int64).Load() //nolint:forcetypeassert // the map holds nothing else
	inflating.Add(-n)
	return n
}

// settled moves an inflated message from the account of this package to that of its receiver, which may be nil.
func settled(data mem.BufferSlice, charged *Charged) error {
	for _, b := range data {
		if bytes := b.ReadOnlyData(); len(bytes) > 0 {
			n := settle(&bytes[0])
			if n == 0 || charged == nil {
				return nil
			}
			return charged.Charge(n)
		}
	}
	return nil
}

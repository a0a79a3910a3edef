package compute

import (
	"bytes"
	"compress/zlib"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc/mem"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/elements"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/heap"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Protocol is what custom_info says of a server that knows the metadata of this package.
const Protocol = "sharedtensor.compute/1"

// Keys of the metadata of messages.
const (
	keyDType             = "dtype"
	keyCompression       = "compression"
	keyAcceptDType       = "accept-dtype"
	keyAcceptCompression = "accept-compression"
	keyProtocol          = "protocol"
)

// Names of compressions. Zlib is that of Python's standard library; Zstd is several times faster at a like size.
const (
	Zlib = "zlib"
	Zstd = "zstd"
)

// shapeOf reads the shape of a message: the wide one where it is there.
func shapeOf(narrow []int32, wide []int64) tensor.Shape {
	if len(wide) > 0 {
		return tensor.Shape(wide)
	}
	shape := make(tensor.Shape, len(narrow))
	for i, n := range narrow {
		shape[i] = int64(n)
	}
	return shape
}

// shapeFields writes a shape, as 32 bits where they do.
func shapeFields(shape tensor.Shape) (narrow []int32, wide []int64) {
	for _, n := range shape {
		if n > math.MaxInt32 {
			return nil, shape
		}
		narrow = append(narrow, int32(n))
	}
	return narrow, nil
}

// describe reads what a message says of its tensor, and refuses more than limit bytes. Nothing is allocated.
func describe(shape tensor.Shape, metadata map[string]string, limit int64) (tensor.Spec, int64, error) {
	spec := tensor.Spec{DType: tensor.Float32, Shape: shape}
	if name, ok := metadata[keyDType]; ok {
		var err error
		if spec.DType, err = tensor.ParseDType(name); err != nil {
			return spec, 0, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	n, err := spec.ByteLen()
	if err != nil {
		return spec, 0, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if n > limit {
		return spec, 0, fmt.Errorf("%w: %s of %s has %d bytes, of at most %d", ErrTooLarge, shape, spec.DType, n, limit)
	}
	return spec, n, nil
}

// newTensor returns an owned tensor of new memory, whose elements are anything.
func newTensor(dev driver.Device, spec tensor.Spec, bytes int64) (*tensor.Tensor, error) {
	var memory driver.Memory
	var err error
	if h, ok := dev.(*heap.Device); ok {
		memory, err = h.AllocDirty(bytes)
	} else {
		memory, err = dev.Alloc(bytes)
	}
	if err != nil {
		return nil, err
	}
	storage := tensor.NewStorage(memory)
	defer storage.Close()
	return tensor.New(storage, spec)
}

// decode reads the tensor of one message to memory of dev, owned. It borrows data.
func decode(data mem.BufferSlice, spec tensor.Spec, bytes int64, compression string, dev driver.Device) (*tensor.Tensor, error) {
	if compression == "" && int64(data.Len()) != bytes {
		return nil, fmt.Errorf("%w: %d bytes of data, where %s of %s has %d", ErrInvalid, data.Len(), spec.Shape, spec.DType, bytes)
	}
	t, err := newTensor(dev, spec, bytes)
	if err != nil {
		return nil, err
	}
	if compression == "" {
		err = elements.Store(t.Storage().Memory(), 0, data, nil)
	} else {
		err = inflate(t, data, compression)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// inflate fills t with what data is when it is decompressed: no byte more, no byte less.
func inflate(t *tensor.Tensor, data mem.BufferSlice, compression string) error {
	reader := data.Reader()
	defer reader.Close()
	var plain io.Reader
	switch compression {
	case Zlib:
		z, err := zlib.NewReader(reader)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		plain = z
	case Zstd:
		// One goroutine, and a window no larger than this side writes: a peer's frame does not decide about this side's
		// memory.
		z, err := zstd.NewReader(reader, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		defer z.Close()
		plain = z
	default:
		return fmt.Errorf("%w: compression %q", ErrNotServed, compression)
	}
	if err := t.FillFrom(plain); err != nil {
		return fmt.Errorf("%w: %s data: %w", ErrInvalid, compression, err)
	}
	if n, _ := io.ReadFull(plain, make([]byte, 1)); n > 0 {
		return fmt.Errorf("%w: more %s data than the shape has", ErrInvalid, compression)
	}
	return nil
}

// looksLikeZlib reports whether data that is not as long as its shape says is compressed as splitlearn-comm's
// CompressedTensorCodec does it.
func looksLikeZlib(data mem.BufferSlice, bytes int64) bool {
	if data.Len() < 2 || int64(data.Len()) == bytes {
		return false
	}
	var head [2]byte
	data.CopyTo(head[:])
	return head[0] == 0x78 && (uint(head[0])<<8|uint(head[1]))%31 == 0
}

// compressing is when compressing pays.
const (
	compressFrom  = 4 << 10
	compressProbe = 64 << 10
	compressGain  = 0.9
)

// choose returns the first compression that a peer accepts, or none.
func choose(accept string) string {
	for _, name := range strings.Split(accept, ",") {
		if name = strings.TrimSpace(name); name == Zlib || name == Zstd {
			return name
		}
	}
	return ""
}

// deflate returns data compressed, or false where that does not pay, which a sample from its middle tells.
func deflate(data []byte, compression string) (mem.BufferSlice, bool) {
	if compression == "" || len(data) < compressFrom {
		return nil, false
	}
	if len(data) > 4*compressProbe {
		middle := data[len(data)/2:][:compressProbe]
		if float64(len(compress(middle, compression))) > compressGain*compressProbe {
			return nil, false
		}
	}
	packed := compress(data, compression)
	if float64(len(packed)) > compressGain*float64(len(data)) {
		return nil, false
	}
	return mem.BufferSlice{mem.SliceBuffer(packed)}, true
}

// encoder is shared: EncodeAll is safe for concurrent use.
var encoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(4<<20))
	if err != nil {
		panic(err) // the options are constants
	}
	return e
})

func compress(data []byte, compression string) []byte {
	if compression == Zstd {
		return encoder().EncodeAll(data, nil)
	}
	var out bytes.Buffer
	z := zlib.NewWriter(&out) // level 6, as splitlearn-comm's
	z.Write(data)             // a bytes.Buffer does not fail
	z.Close()
	return slices.Clip(out.Bytes())
}

// toFloat32 takes t and returns it, or where it has another type an owned tensor with its elements converted, as
// clients get it that know no other.
func toFloat32(t *tensor.Tensor, dev driver.Device) (*tensor.Tensor, error) {
	if t.DType() == tensor.Float32 {
		return t, nil
	}
	defer t.Close()
	values, err := tensor.Float32s(t)
	if err != nil {
		return nil, err
	}
	return tensor.FromSlice(dev, t.Shape(), values)
}

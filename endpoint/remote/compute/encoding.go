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
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Protocol is the value in custom_info of a server that supports the metadata of this package.
const Protocol = "sharedtensor.compute/1"

// Keys of a message's metadata.
const (
	keyDType             = "dtype"
	keyCompression       = "compression"
	keyAcceptDType       = "accept-dtype"
	keyAcceptCompression = "accept-compression"
	keyProtocol          = "protocol"
)

// Names of compressions. Zlib is compatible with Python's standard library. Zstd is several times faster at a similar
// size.
const (
	Zlib = "zlib"
	Zstd = "zstd"
)

// shapeOf returns the shape of a message: the 64-bit one if it is present.
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

// shapeFields encodes a shape with 32 bits if all sizes fit, and otherwise with 64 bits.
func shapeFields(shape tensor.Shape) (narrow []int32, wide []int64) {
	for _, n := range shape {
		if n > math.MaxInt32 {
			return nil, shape
		}
		narrow = append(narrow, int32(n))
	}
	return narrow, nil
}

// describe validates a message's description of its tensor and refuses more than limit bytes. It allocates no tensor
// memory.
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

// newTensor returns an owned tensor in new, uninitialized memory.
func newTensor(dev driver.Device, spec tensor.Spec, bytes int64) (*tensor.Tensor, error) {
	var memory driver.Memory
	var err error
	if h, ok := dev.(*heapDevice); ok {
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

// decode copies the tensor of one message to memory of dev and returns it, owned. It borrows data.
func decode(data mem.BufferSlice, spec tensor.Spec, bytes int64, compression string, dev driver.Device) (*tensor.Tensor, error) {
	if compression == "" && int64(data.Len()) != bytes {
		return nil, fmt.Errorf("%w: %d bytes of data, but %s of %s has %d", ErrInvalid, data.Len(), spec.Shape, spec.DType, bytes)
	}
	t, err := newTensor(dev, spec, bytes)
	if err != nil {
		return nil, err
	}
	if compression == "" {
		err = bulk.Store(t.Storage().Memory(), 0, data, nil)
	} else {
		err = inflate(t, data, compression)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// decoderBytes is the largest window of a decoder.
const decoderBytes = 8 << 20

// inflate decompresses data into t. It fails unless the result has exactly the size of t.
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
		// One goroutine, and a window no larger than this side writes, so that a peer's frame does not control this
		// side's memory use.
		z, err := zstd.NewReader(reader, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(decoderBytes))
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

// looksLikeZlib reports whether data does not have the length of its shape and is compressed as by splitlearn-comm's
// CompressedTensorCodec.
func looksLikeZlib(data mem.BufferSlice, bytes int64) bool {
	if data.Len() < 2 || int64(data.Len()) == bytes {
		return false
	}
	var head [2]byte
	data.CopyTo(head[:])
	return head[0] == 0x78 && (uint(head[0])<<8|uint(head[1]))%31 == 0
}

// Limits that decide whether compression pays.
const (
	compressFrom  = 4 << 10
	compressProbe = 64 << 10
	compressGain  = 0.9
)

// choose returns the first supported compression in accept, or "".
func choose(accept string) string {
	for _, name := range strings.Split(accept, ",") {
		if name = strings.TrimSpace(name); name == Zlib || name == Zstd {
			return name
		}
	}
	return ""
}

// deflate compresses data. It returns false if compressing a sample from the middle shows that this would not pay.
func deflate(data []byte, compression string) ([]byte, bool) {
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
	return packed, true
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
	z := zlib.NewWriter(&out) // splitlearn-comm's level is 6
	z.Write(data)             // a bytes.Buffer never fails
	z.Close()
	return slices.Clip(out.Bytes())
}

// toFloat32 takes ownership of t. It returns t if its type is float32, and otherwise an owned tensor with the elements
// converted, for clients that accept only float32.
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

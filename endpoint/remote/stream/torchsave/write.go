package torchsave

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/sharedtensor/sharedtensor/tensor"
)

// Encoded is the file of one tensor in three pieces.
type Encoded struct {
	// Head and Tail are the bytes before and after the elements. They belong to the Encoded.
	Head, Tail []byte
	// Elements is the tensor's memory. It is valid until the tensor is closed, and must not be modified.
	Elements []byte
}

// Size returns the size of the file in bytes.
func (e *Encoded) Size() int64 {
	return int64(len(e.Head)) + int64(len(e.Elements)) + int64(len(e.Tail))
}

// WriteTo writes the file. It implements io.WriterTo.
func (e *Encoded) WriteTo(w io.Writer) (n int64, err error) {
	for _, piece := range [][]byte{e.Head, e.Elements, e.Tail} {
		m, err := w.Write(piece)
		n += int64(m)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Encode returns a file that torch.load reads as a CPU tensor equal to t. The elements are not copied, but read once
// for their checksum. Encode borrows t, which must be contiguous and in host memory. Errors are those of
// tensor.RawData, and tensor.ErrDType if PyTorch lacks the type.
func Encode(t *tensor.Tensor) (*Encoded, error) {
	if t.DType().BitSize()%8 != 0 {
		return nil, fmt.Errorf("%w: torch.save has no %s of single elements", tensor.ErrDType, t.DType())
	}
	elements, err := tensor.RawData(t)
	if err != nil {
		return nil, err
	}
	out := &splitWriter{}
	archive := zip.NewWriter(out)
	for _, small := range []struct {
		name string
		data []byte
	}{{"archive/data.pkl", pickleTensor(t)}, {"archive/byteorder", []byte("little")}, {"archive/version", []byte("3\n")}} {
		if err := writeStored(archive, small.name, small.data, out.size); err != nil {
			return nil, err
		}
	}
	e := &Encoded{Elements: elements}
	const storage = "archive/data/0"
	w, err := archive.CreateRaw(storedHeader(storage, elements, out.size))
	if err != nil {
		return nil, err
	}
	if err := archive.Flush(); err != nil {
		return nil, err
	}
	e.Head = out.take()
	out.skip = true // the archive writer only computes size and checksum of the elements
	if _, err := w.Write(elements); err != nil {
		return nil, err
	}
	if err := archive.Flush(); err != nil {
		return nil, err
	}
	out.skip = false
	if err := archive.Close(); err != nil {
		return nil, err
	}
	e.Tail = out.take()
	return e, nil
}

func writeStored(archive *zip.Writer, name string, data []byte, at int64) error {
	w, err := archive.CreateRaw(storedHeader(name, data, at))
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	return archive.Flush()
}

// storedHeader returns the header of an entry at an offset of the file. Padding aligns its data to 64 bytes, so that
// PyTorch can map the storage.
func storedHeader(name string, data []byte, at int64) *zip.FileHeader {
	const localHeader, extraHeader, alignment = 30, 4, 64
	start := at + localHeader + int64(len(name)) + extraHeader
	padding := (alignment - start%alignment) % alignment
	extra := binary.LittleEndian.AppendUint16([]byte("FB"), uint16(padding))
	extra = append(extra, bytes.Repeat([]byte{'Z'}, int(padding))...)
	return &zip.FileHeader{
		Name: name, Method: zip.Store, Extra: extra, CRC32: crc32.ChecksumIEEE(data),
		CompressedSize64: uint64(len(data)), UncompressedSize64: uint64(len(data)),
	}
}

// splitWriter keeps the written bytes, except those written while skip is set.
type splitWriter struct {
	kept bytes.Buffer
	size int64
	skip bool
}

func (w *splitWriter) Write(p []byte) (int, error) {
	w.size += int64(len(p))
	if w.skip {
		return len(p), nil
	}
	return w.kept.Write(p)
}

func (w *splitWriter) take() []byte {
	kept := bytes.Clone(w.kept.Bytes())
	w.kept.Reset()
	return kept
}

// storageClasses maps element types to storage classes.
var storageClasses = func() map[tensor.DType]string {
	classes := make(map[tensor.DType]string)
	for class, dtype := range typedStorages {
		classes[dtype] = class
	}
	return classes
}()

// pickleTensor returns a pickle that calls _rebuild_tensor_v2, or _rebuild_tensor_v3 for types without a storage class.
func pickleTensor(t *tensor.Tensor) []byte {
	class, typed := storageClasses[t.DType()]
	elements := t.NumElements()
	p := pickler{opProto, 2}
	if typed {
		p.global("torch._utils", "_rebuild_tensor_v2")
	} else {
		p.global("torch._utils", "_rebuild_tensor_v3")
	}
	p = append(p, opMark, opMark)
	p.string("storage")
	if typed {
		p.global("torch", class)
	} else {
		p.global("torch.storage", "UntypedStorage")
		elements = t.Bytes()
	}
	p.string("0")
	p.string("cpu")
	p.int(elements)
	p = append(p, opTuple, opPersistentID)
	p.int(0)
	p.ints(t.Shape())
	p.ints(t.Shape().Strides())
	p = append(p, opFalse)
	p.global("collections", "OrderedDict")
	p = append(p, opEmptyTuple, opReduce)
	if !typed {
		p.global("torch", t.DType().String())
	}
	return append(p, opTuple, opReduce, opStop)
}

// pickler appends instructions.
type pickler []byte

func (p *pickler) global(module, name string) {
	*p = append(append(*p, opGlobal), module+"\n"+name+"\n"...)
}

func (p *pickler) string(s string) {
	*p = binary.LittleEndian.AppendUint32(append(*p, opString4), uint32(len(s)))
	*p = append(*p, s...)
}

func (p *pickler) int(n int64) {
	if n == int64(int32(n)) {
		*p = binary.LittleEndian.AppendUint32(append(*p, opInt4), uint32(n))
		return
	}
	*p = binary.LittleEndian.AppendUint64(append(*p, opLong1, 8), uint64(n))
}

func (p *pickler) ints(numbers []int64) {
	*p = append(*p, opMark)
	for _, n := range numbers {
		p.int(n)
	}
	*p = append(*p, opTuple)
}

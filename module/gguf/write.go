package gguf

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// writeBuffer combines the header and small tensors into larger writes.
const writeBuffer = 256 << 10

// Source writes the bytes of one tensor, exactly t.Bytes of them. It is called once for each tensor, in the order of the
// file, on one goroutine.
type Source func(w io.Writer, t TensorInfo) error

// Write writes a file to w: h, which comes from [NewHeader], and then the output of source for each tensor, padded to
// the alignment. It borrows w. If source writes too little or too much, the error is [ErrLength]; errors of w and source
// are wrapped with the tensor. After an error w has received part of the file.
func Write(w io.Writer, h *Header, source Source) error {
	text, err := h.encode()
	if err != nil {
		return err
	}
	begin, ok := roundUp(int64(len(text)), 0, max(h.Alignment, 1))
	if !ok || begin != h.DataOffset {
		return fmt.Errorf("%w: the header ends at %d, not %d; it was not made by NewHeader", ErrLength, begin, h.DataOffset)
	}
	buffer := bufio.NewWriterSize(w, writeBuffer)
	if _, err := buffer.Write(text); err != nil {
		return fmt.Errorf("write the header: %w", err)
	}
	if err := writeZeros(buffer, begin-int64(len(text))); err != nil {
		return fmt.Errorf("write the header: %w", err)
	}
	var at int64
	for _, t := range h.Tensors {
		if t.Offset != at {
			return fmt.Errorf("tensor %q: %w: it is at %d, not %d", t.Name, ErrLength, t.Offset, at)
		}
		c := &countingWriter{w: buffer}
		if err := source(c, t); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if c.n != t.Bytes() {
			return fmt.Errorf("tensor %q: %w: %d were written, not %d", t.Name, ErrLength, c.n, t.Bytes())
		}
		at, _ = roundUp(at, c.n, h.Alignment)
		if err := writeZeros(buffer, at-t.Offset-c.n); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	if err := buffer.Flush(); err != nil {
		return fmt.Errorf("write the data: %w", err)
	}
	return nil
}

// writeZeros writes n zeros. An alignment, and so n, may be as large as 2 GiB.
func writeZeros(w io.Writer, n int64) error {
	zeros := make([]byte, min(n, writeBuffer))
	for n > 0 {
		done, err := w.Write(zeros[:min(n, int64(len(zeros)))])
		if err != nil {
			return err
		}
		n -= int64(done)
	}
	return nil
}

// countingWriter counts the bytes that it passes on.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// encode returns everything before the data section, without the zeros that align it.
func (h *Header) encode() ([]byte, error) {
	e := &encoder{}
	e.WriteString(Magic)
	e.put(h.Version)
	e.put(uint64(len(h.Tensors)))
	e.put(uint64(len(h.Metadata)))
	for _, m := range h.Metadata {
		e.string(m.Key)
		if err := e.value(m.Value); err != nil {
			return nil, fmt.Errorf("metadata %q: %w", m.Key, err)
		}
	}
	for _, t := range h.Tensors {
		number, err := numberOf(t.DType)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		e.string(t.Name)
		e.put(uint32(len(t.Shape)))
		for _, n := range slices.Backward(t.Shape) {
			e.put(uint64(n))
		}
		e.put(number)
		e.put(uint64(t.Offset))
	}
	if e.Len() > MaxHeaderBytes {
		return nil, fmt.Errorf("%w: %d bytes; the limit is %d", ErrHeaderTooLarge, e.Len(), int64(MaxHeaderBytes))
	}
	return e.Bytes(), nil
}

// encoder appends values to a buffer, which does not fail.
type encoder struct{ bytes.Buffer }

func (e *encoder) put(v any) {
	_ = binary.Write(e, binary.LittleEndian, v) // fails for unsupported types only
}

func (e *encoder) string(s string) {
	e.put(uint64(len(s)))
	e.WriteString(s)
}

// value appends a type and a value.
func (e *encoder) value(value any) error {
	if number, ok := scalarType(value); ok {
		e.put(number)
		e.scalar(value)
		return nil
	}
	switch v := value.(type) {
	case []uint8:
		array(e, v)
	case []int8:
		array(e, v)
	case []uint16:
		array(e, v)
	case []int16:
		array(e, v)
	case []uint32:
		array(e, v)
	case []int32:
		array(e, v)
	case []uint64:
		array(e, v)
	case []int64:
		array(e, v)
	case []float32:
		array(e, v)
	case []float64:
		array(e, v)
	case []bool:
		array(e, v)
	case []string:
		array(e, v)
	default:
		return fmt.Errorf("%w: Go type %T", ErrValue, value)
	}
	return nil
}

// array appends a slice of scalars.
func array[T any](e *encoder, values []T) {
	var none T
	number, _ := scalarType(none)
	e.put(uint32(typeArray))
	e.put(number)
	e.put(uint64(len(values)))
	for _, v := range values {
		e.scalar(v)
	}
}

// scalar appends a value without its type.
func (e *encoder) scalar(value any) {
	if s, ok := value.(string); ok {
		e.string(s)
		return
	}
	e.put(value)
}

// scalarType returns the number of a value's type; ok is false if value is not a scalar.
func scalarType(value any) (number uint32, ok bool) {
	switch value.(type) {
	case uint8:
		return typeUint8, true
	case int8:
		return typeInt8, true
	case uint16:
		return typeUint16, true
	case int16:
		return typeInt16, true
	case uint32:
		return typeUint32, true
	case int32:
		return typeInt32, true
	case float32:
		return typeFloat32, true
	case bool:
		return typeBool, true
	case string:
		return typeString, true
	case uint64:
		return typeUint64, true
	case int64:
		return typeInt64, true
	case float64:
		return typeFloat64, true
	}
	return 0, false
}

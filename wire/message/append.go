package message

import (
	"bytes"
	"sync"

	"github.com/fxamacker/cbor/v2"
)

var (
	appendMode = mustAppendMode()
	scratch    = sync.Pool{New: func() any { return new(bytes.Buffer) }}
)

// maxScratch is the size of the largest buffer that is kept for reuse.
const maxScratch = 64 << 10

// mustAppendMode returns the mode of [Marshal] for caller-provided buffers.
func mustAppendMode() cbor.UserBufferEncMode {
	m, err := encMode.EncOptions().UserBufferEncMode()
	if err != nil {
		panic(err) // the options are constants
	}
	return m
}

// AppendMarshal appends the encoding of v, as [Marshal] returns it, and returns the extended slice. It does not check
// texts. On an error, which is one of Marshal's, nothing is appended.
func AppendMarshal(b []byte, v any) ([]byte, error) {
	buf := scratch.Get().(*bytes.Buffer)
	buf.Reset()
	err := appendMode.MarshalToBuffer(v, buf)
	if err == nil {
		b = append(b, buf.Bytes()...)
	}
	if buf.Cap() <= maxScratch {
		scratch.Put(buf)
	}
	if err != nil {
		return b, encodingError(err)
	}
	return b, nil
}

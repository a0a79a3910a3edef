package wire

import (
	"bytes"
	"fmt"
	"time"
)

// frameBytes returns the encoding of a frame.
func frameBytes(kind Kind, files int, id uint64, body []byte) []byte {
	b := make([]byte, HeaderBytes)
	header{length: uint32(len(body)), kind: kind, files: uint16(files), id: id}.put(b)
	return append(b, body...)
}

// item returns a CBOR byte string of n bytes in total; n is 1 or at least 9.
func item(n int) []byte {
	if n == 1 {
		return []byte{0}
	}
	b := append([]byte{0x5a, byte((n - 5) >> 24), byte((n - 5) >> 16), byte((n - 5) >> 8), byte(n - 5)},
		bytes.Repeat([]byte{0xa5}, n-5)...)
	for i := 5; i < n; i += 97 {
		b[i] = byte(i / 97)
	}
	return b
}

func name(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// The time limit and the interval for waiting for other goroutines.
const (
	waitLong = 10 * time.Second
	waitStep = time.Millisecond
)

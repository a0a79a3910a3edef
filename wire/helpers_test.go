package wire

import (
	"bytes"
	"fmt"
	"time"
)

// frameBytes is a frame as it goes over the wire.
func frameBytes(kind Kind, files int, id uint64, body []byte) []byte {
	b := make([]byte, HeaderBytes)
	header{length: uint32(len(body)), kind: kind, files: uint16(files), id: id}.put(b)
	return append(b, body...)
}

// item is a byte string of n bytes of CBOR in all; n is at least 9 or 1.
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

// How long to wait for what other goroutines do by themselves, and how often to look.
const (
	waitLong = 10 * time.Second
	waitStep = time.Millisecond
)

package message

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire"
)

// encoded returns v as a CBOR item.
func encoded(t testing.TB, v any) []byte {
	t.Helper()
	b, err := Marshal(v)
	require.NoError(t, err)
	return b
}

// bytesOfFrame returns the encoding of a frame.
func bytesOfFrame(kind wire.Kind, files int, id uint64, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	b = binary.BigEndian.AppendUint16(b, uint16(kind))
	b = binary.BigEndian.AppendUint16(b, uint16(files))
	return append(binary.BigEndian.AppendUint64(b, id), body...)
}

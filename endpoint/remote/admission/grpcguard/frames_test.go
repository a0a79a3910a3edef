package grpcguard

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// frame returns the bytes of a frame.
func frame(kind, flags byte, id uint32, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	b = append(b, flags)
	return append(binary.BigEndian.AppendUint32(b, id), payload...)
}

// A call whose headers end in a CONTINUATION frame has its own stream, so that its messages are charged and limited.
func TestContinuationBelongsToItsStream(t *testing.T) {
	t.Parallel()
	pool := admission.NewPool(admission.Limits{Bytes: 1 << 20})
	c := &conn{streams: make(map[uint32]*stream)}
	c.frames.skip = prefaceBytes
	scan := func(p []byte) {
		for _, b := range p { // the transport may read any number of bytes
			c.frames.scan([]byte{b}, c.find)
		}
	}
	require.True(t, c.frames.partial())
	scan(make([]byte, prefaceBytes))
	require.False(t, c.frames.partial())
	scan(frame(frameHeaders, 0, 5, []byte("head")))
	require.True(t, c.frames.partial(), "the header block is unfinished")
	scan(frame(frameContinued, 0, 5, nil))
	require.True(t, c.frames.partial())
	scan(frame(frameContinued, flagEndHeaders, 5, []byte("rest")))
	require.False(t, c.frames.partial())

	s := &stream{charged: pool.Open(rights.Identity{Method: rights.MethodToken}), limit: 1 << 20}
	id, ok := c.open(s)
	require.True(t, ok)
	require.EqualValues(t, 5, id)
	scan(frame(frameData, 0, 5, make([]byte, 1000)))
	require.Positive(t, pool.Used())
	_, ok = c.open(&stream{})
	require.False(t, ok, "no header block has ended")
}

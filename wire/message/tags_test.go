package message

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire"
)

// Envelopes contain no tags, including that of self-described CBOR. Payloads contain only the two that PROTOCOL.md
// names.
func TestTagsOutsideOfPayloadsAreRefused(t *testing.T) {
	t.Parallel()
	self := []byte{0xd9, 0xd9, 0xf7} // 55799
	tensor := []byte{0xd9, 0xc3, 0x51}
	join := func(parts ...[]byte) (out []byte) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	request := func(data []byte) error { _, err := ParseRequest(data); return err }
	call := func(data []byte) error { _, err := ParseCall(data); return err }
	returned := func(data []byte) error { _, err := ParseReturned(data); return err }
	payload := func(data []byte) error { var raw RawMessage; return UnmarshalPayload(data, &raw) }
	for _, c := range []struct {
		name  string
		parse func([]byte) error
		data  []byte
		fine  bool
	}{
		{"request", request, []byte{0xa1, 1, 1}, true},
		{"request with unknown key", request, []byte{0xa2, 1, 1, 9, 0x61, 'x'}, true},
		{"whole request", request, join(self, []byte{0xa1, 1, 1}), false},
		{"operation", request, join([]byte{0xa1, 1}, self, []byte{1}), false},
		{"operation as tensor", request, join([]byte{0xa1, 1}, tensor, []byte{1}), false},
		{"timeout", request, join([]byte{0xa2, 1, 1, 2}, self, []byte{1}), false},
		{"unknown key of a request", request, join([]byte{0xa2, 1, 1, 9}, self, []byte{1}), false},
		{"whole call", call, join(self, []byte{0xa1, 1, 0x61, 'f'}), false},
		{"endpoint", call, join([]byte{0xa1, 1}, self, []byte{0x61, 'f'}), false},
		{"arguments", call, join([]byte{0xa2, 1, 0x61, 'f', 2}, tensor, []byte{0x80}), true},
		{"handles", call, join([]byte{0xa2, 1, 0x61, 'f', 3}, self, []byte{0x80}), false},
		{"result", returned, join([]byte{0xa1, 1}, tensor, []byte{0x80}), true},
		{"cached", returned, join([]byte{0xa1, 4}, self, []byte{0xf5}), false},
		{"tensor in a payload", payload, join([]byte{0x81}, tensor, []byte{0x80}), true},
		{"self-described payload", payload, join(self, []byte{1}), false},
		{"self-described part", payload, join([]byte{0x81}, self, []byte{1}), false},
		{"big number", payload, []byte{0xc2, 0x41, 1}, false},
		{"message", func(data []byte) error { return Unmarshal(data, new(Ping)) }, join(self, []byte{0xa1, 1, 1}), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.parse(c.data)
			if c.fine {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrEncoding)
		})
	}
	_, ok := PayloadTag(join(self, tensor, []byte{0x80}))
	require.True(t, ok)
	tag, _ := PayloadTag(join(self, tensor, []byte{0x80}))
	require.EqualValues(t, 55799, tag, "it is no tensor")
}

func TestDescriptorsWithoutHandleAreRefused(t *testing.T) {
	t.Parallel()
	at := func(file int32) Handle { return Handle{Kind: "memfd", Bytes: 1, File: file} }
	require.NoError(t, ValidateHandles([]Handle{at(1), at(0)}, 2))
	require.ErrorIs(t, ValidateHandles([]Handle{at(1)}, 2), wire.ErrProtocol)
	require.ErrorIs(t, ValidateHandles(nil, 1), wire.ErrProtocol)
}

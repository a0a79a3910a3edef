package message

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire"
)

func TestUnmarshalIsStrict(t *testing.T) {
	t.Parallel()
	deep := append(bytes.Repeat([]byte{0x81}, MaxDepth+1), 0)
	tests := []struct {
		name string
		data []byte
	}{
		{"nothing", nil},
		{"cut off", []byte{0xa1, 0x01}},
		{"two items", []byte{0xa0, 0xa0}},
		{"duplicate key", []byte{0xa2, 1, 0x61, 'a', 1, 0x61, 'b'}},
		{"duplicate unknown key", []byte{0xa3, 1, 0x61, 'a', 0x18, 99, 0, 0x18, 99, 0}},
		{"indefinite map", []byte{0xbf, 1, 0x61, 'a', 0xff}},
		{"indefinite text", []byte{0xa1, 1, 0x7f, 0x61, 'a', 0xff}},
		{"indefinite array within an unknown key", []byte{0xa1, 0x18, 99, 0x9f, 0xff}},
		{"tag", []byte{0xc1, 0xa0}},
		{"tag within an unknown key", []byte{0xa1, 0x18, 99, 0xc1, 0}},
		{"text that is not UTF-8", []byte{0xa1, 1, 0x61, 0xff}},
		{"too deep within an unknown key", append([]byte{0xa1, 0x18, 99}, deep...)},
		{"bytes for text", []byte{0xa1, 1, 0x41, 'a'}},
		{"number for text", []byte{0xa1, 1, 1}},
		{"negative version", []byte{0xa2, 1, 0x61, 'a', 2, 0x20}},
		{"array for the message", []byte{0x81, 0x61, 'a'}},
		{"a thousand million elements", []byte{0xa1, 0x18, 99, 0x9a, 0x3b, 0x9a, 0xca, 0}},
		{"a thousand million bytes", []byte{0xa1, 1, 0x7a, 0x3b, 0x9a, 0xca, 0}},
		{"reserved length", []byte{0xa1, 1, 0x7c}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var a Acquire
			require.ErrorIs(t, Unmarshal(tt.data, &a), ErrEncoding)
		})
	}
}

func TestUnmarshalIgnoresUnknownKeys(t *testing.T) {
	t.Parallel()
	data, err := encMode.Marshal(map[any]any{1: "m", 99: []any{1, map[int]int{1: 2}}, "text": true})
	require.NoError(t, err)
	var a Acquire
	require.NoError(t, Unmarshal(data, &a))
	require.Equal(t, Acquire{Name: "m"}, a)
}

func TestUnmarshalKeepsNothing(t *testing.T) {
	t.Parallel()
	data, err := Marshal(Request{Op: OpPing, Body: RawMessage{1}})
	require.NoError(t, err)
	var r Request
	require.NoError(t, Unmarshal(data, &r))
	clear(data)
	require.Equal(t, RawMessage{1}, r.Body)
}

func TestUUIDLength(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 15, 17, 32} {
		data, err := encMode.Marshal(map[int]any{1: make([]byte, n), 2: 1})
		require.NoError(t, err)
		require.ErrorIs(t, Unmarshal(data, new(DeviceInfo)), ErrEncoding, "%d bytes", n)
	}
	require.Error(t, Unmarshal([]byte{0xa1, 1, 0x60}, new(DeviceInfo)))
}

func TestStorageIsThreeElements(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 2, 4} {
		row := []any{1, make([]byte, 16), 1, 0}[:n]
		data, err := encMode.Marshal(map[int]any{11: []any{row}})
		require.NoError(t, err)
		require.ErrorIs(t, Unmarshal(data, new(Manifest)), ErrEncoding, "%d elements", n)
	}
}

func TestHandleValidate(t *testing.T) {
	t.Parallel()
	good := Handle{Kind: "memfd", Bytes: 10, File: 0}
	require.NoError(t, good.Validate(1))
	for name, h := range map[string]Handle{
		"index":             {File: 1},
		"negative index":    {File: -2},
		"size":              {Bytes: 1 << 63, File: -1},
		"offset":            {Offset: 1 << 63, File: -1},
		"sum":               {Offset: 1<<63 - 1, Bytes: 1, File: -1},
		"file and blob too": {Blob: []byte{1}, File: 0},
		"long name":         {File: -1, Name: strings.Repeat("n", MaxHandleName+1)},
	} {
		require.ErrorIs(t, h.Validate(1), wire.ErrProtocol, name)
	}
	require.NoError(t, ValidateHandles([]Handle{good, {File: -1}}, 1))
	require.ErrorIs(t, ValidateHandles([]Handle{good, good}, 1), wire.ErrProtocol)
	require.ErrorIs(t, ValidateHandles([]Handle{good, {File: 7}}, 1), wire.ErrProtocol)
}

func TestRequestEnvelope(t *testing.T) {
	t.Parallel()
	body, err := Marshal(Acquire{Name: "m"})
	require.NoError(t, err)
	for _, r := range []Request{
		{Op: OpPing}, {Op: 65535}, {Op: OpList, Timeout: 1}, {Op: OpAcquire, Body: body},
		{Op: OpAcquire, Timeout: 1<<63 - 1, Body: body}, {Op: OpAcquire, Timeout: time.Minute, Body: body},
		{Op: OpCall, Body: body, Metadata: Metadata{"b": "", "a": "x", "long-name": "text"}}, {Op: OpList, Metadata: Metadata{"a": "x"}},
	} {
		want, err := Marshal(r)
		require.NoError(t, err)
		require.Equal(t, want, AppendRequest(nil, r))
		got, err := ParseRequest(want)
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
	b, err := MarshalRequest(OpAcquire, time.Minute, Acquire{Name: "m"})
	require.NoError(t, err)
	r, err := ParseRequest(b)
	require.NoError(t, err)
	require.Equal(t, Request{Op: OpAcquire, Timeout: time.Minute, Body: body}, r)

	r, err = ParseRequest(AppendRequest(nil, Request{Op: 1, Timeout: -5}))
	require.NoError(t, err)
	require.Equal(t, time.Nanosecond, r.Timeout)
	negative, err := Marshal(Request{Op: 1, Timeout: -5})
	require.NoError(t, err)
	_, err = ParseRequest(negative)
	require.ErrorIs(t, err, ErrEncoding)
	_, err = MarshalRequest(OpPing, 0, func() {})
	require.ErrorIs(t, err, ErrEncoding)
}

// FuzzRequest compares the hand-written envelope code with the general codec: both accept and refuse the same input
// with the same result, except for bodies that are refused a step later.
func FuzzRequest(f *testing.F) {
	for _, s := range samples() {
		body, _ := Marshal(s.value)
		f.Add(body)
		f.Add(AppendRequest(nil, Request{Op: s.op, Timeout: time.Second, Body: body}))
	}
	f.Add([]byte{0xa2, 1, 1, 1, 1})
	f.Add([]byte{0xa3, 1, 1, 3, 0xa0, 4, 0xa1, 0x61, 'a', 0x61, 'b'})
	f.Add([]byte{0xa3, 1, 1, 3, 0xa0, 4, 0xa2, 0x61, 'a', 0x61, 'b', 0x61, 'a', 0x61, 'b'})
	f.Add([]byte{0xa2, 1, 1, 3, 0xd9, 0xc3, 0x51, 0x80})
	f.Add([]byte{0xa2, 1, 1, 3, 0xd9, 0xc3, 0x51, 0xc3, 0x80}) // a bignum that is an array
	f.Add([]byte{0xa2, 2, 1, 1, 1})
	f.Add([]byte{0xa1, 1, 0x1b, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := ParseRequest(data)
		var want Request
		wantErr := UnmarshalPayload(data, &want)
		if want.Timeout < 0 && wantErr == nil {
			wantErr = ErrEncoding
		}
		if wantErr == nil { // the general decoder skips unknown fields, including their tags
			wantErr = checkEnvelopeTags(data, 3)
		}
		if err == nil && wantErr != nil {
			// The envelope is valid, so the body must be invalid and be refused when it is decoded.
			require.ErrorIs(t, UnmarshalPayload(got.Body, new(RawMessage)), ErrEncoding, "%v", wantErr)
			return
		}
		require.Equal(t, wantErr == nil, err == nil, "%v, %v", wantErr, err)
		if err != nil {
			require.ErrorIs(t, err, ErrEncoding)
			return
		}
		require.Equal(t, want.Op, got.Op)
		require.Equal(t, want.Timeout, got.Timeout)
		require.True(t, bytes.Equal(want.Body, got.Body))
		require.Equal(t, len(want.Metadata), len(got.Metadata))
		for name, text := range want.Metadata {
			require.Equal(t, text, got.Metadata[name])
		}
	})
}

// FuzzMessages decodes every message. Accepted input must encode, and decode to the same value again.
func FuzzMessages(f *testing.F) {
	all := samples()
	for i, s := range all {
		body, err := Marshal(s.value)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(i), body)
	}
	f.Add(byte(2), []byte("\xa4001i000000000\x03o0000000\xa1000000020")) // a raw part with a text that is not UTF-8
	f.Fuzz(func(t *testing.T, which byte, data []byte) {
		typ := reflect.TypeOf(all[int(which)%len(all)].value).Elem()
		v := reflect.New(typ)
		if err := Unmarshal(data, v.Interface()); err != nil {
			require.ErrorIs(t, err, ErrEncoding)
			return
		}
		body, err := Marshal(v.Interface())
		if errors.Is(err, ErrEncoding) && InvalidText(data) != nil { // in a raw part, which only its own decoder reads
			_, err = MarshalShown(v.Interface())
			require.NoError(t, err)
			return
		}
		require.NoError(t, err)
		again := reflect.New(typ)
		require.NoError(t, Unmarshal(body, again.Interface()))
		body2, err := Marshal(again.Interface())
		require.NoError(t, err)
		require.Equal(t, body, body2)
	})
}

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

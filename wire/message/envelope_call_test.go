package message

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var someHandles = []Handle{{Kind: "memfd", Bytes: 4096, File: 0}, {Kind: "cuda-ipc", Bytes: 1, Blob: []byte{1, 2}, File: -1},
	{Kind: HandleInline, Device: uuid(0x10), Bytes: 3, Blob: []byte{1, 2, 3}, File: -1, Name: "n"}, {Kind: HandleInline, File: -1},
	{Kind: "memfd", Bytes: 1 << 40, Offset: 24, File: 300, Storage: 1, Version: 2, Slab: 3, SlabBytes: 4}, {File: -300}}

// someCalls returns calls with all optional parts, and with sizes on both sides of each length of a head.
func someCalls() []Call {
	calls := []Call{
		{}, {Endpoint: "echo"}, {Endpoint: strings.Repeat("é", 12)}, {Endpoint: strings.Repeat("x", 70_000)},
		{Endpoint: "a", Handles: someHandles}, {Endpoint: "a", SlabsReturned: []uint64{1, 24, 1 << 40}}, {Endpoint: "a", SlabsDropped: []uint64{1 << 63}},
		{Endpoint: "a", Args: RawMessage{0x01}, Handles: someHandles, SlabsReturned: make([]uint64, 30), SlabsDropped: []uint64{2}},
		{Endpoint: "a", Label: "token:é"}, {Endpoint: "a", Args: RawMessage{0x01}, Handles: someHandles, SlabsReturned: []uint64{1}, SlabsDropped: []uint64{2}, Label: strings.Repeat("l", MaxTaskLabel)},
		{Endpoint: "a", Args: RawMessage{0xd9, 0xc3, 0x51, 0x01}, Handles: someHandles},
	}
	for _, v := range []any{
		1, -1, 1 << 40, 1.5, true, nil, "text", []byte{}, make([]byte, 300), []any{}, []int{1, 2, 3}, map[string]any{"a": []any{1, "b", nil}},
		strings.Repeat("y", 70_000), make([]int, 1000),
	} {
		args, err := Marshal(v)
		if err != nil {
			panic(err)
		}
		calls = append(calls, Call{Endpoint: "echo", Args: args})
	}
	return calls
}

func TestCallsAreWrittenAndReadAsByTheCodec(t *testing.T) {
	t.Parallel()
	for _, c := range someCalls() {
		body, err := MarshalPayload(c)
		require.NoError(t, err)
		for _, r := range []Request{{Op: OpCall}, {Op: OpCall, Timeout: 1 << 33}} {
			got, err := AppendCallRequest([]byte("before"), r, c)
			require.NoError(t, err)
			r.Body = body
			require.Equal(t, AppendRequest([]byte("before"), r), got)
		}
		parts, err := ParseCall(body)
		require.NoError(t, err)
		require.Equal(t, c, Call{Endpoint: string(parts.Endpoint), Args: parts.Args, Handles: parts.Handles,
			SlabsReturned: parts.SlabsReturned, SlabsDropped: parts.SlabsDropped, Label: parts.Label})
		_, plain := parsePlainCall(body)
		require.Equal(t, c.Label == "", plain)
	}
	for _, c := range []Call{{Endpoint: "\xff"}, {Label: "\xff"}} {
		_, err := AppendCallRequest(nil, Request{}, c)
		require.ErrorIs(t, err, ErrEncoding)
	}
}

func TestAnswersAreWrittenAndReadAsByTheCodec(t *testing.T) {
	t.Parallel()
	for _, c := range someCalls() {
		for _, r := range []Returned{
			{Value: c.Args}, {Value: c.Args, Cached: true}, {Value: c.Args, Handles: c.Handles},
			{Value: c.Args, Handles: c.Handles, Object: &ObjectRef{ID: "o", Server: "s"}, Cached: true},
		} {
			want, err := MarshalPayload(r)
			require.NoError(t, err)
			got, err := AppendReturned([]byte("before"), &r)
			require.NoError(t, err)
			require.Equal(t, append([]byte("before"), want...), got)
			back, err := ParseReturned(want)
			require.NoError(t, err)
			require.Equal(t, r, back)
		}
	}
}

// FuzzCall compares the hand-written decoding of calls and answers with the general codec. Input that the first accepts
// must be accepted by the second with the same value, unless the content of the argument is invalid.
func FuzzCall(f *testing.F) {
	for _, c := range someCalls() {
		body, _ := MarshalPayload(c)
		if len(body) < 1000 {
			f.Add([]byte(body))
		}
		answer, _ := MarshalPayload(Returned{Value: c.Args, Handles: c.Handles, Cached: len(body)%2 == 0})
		if len(answer) < 1000 {
			f.Add([]byte(answer))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		wellformed := payloadDecMode.Wellformed(data) == nil
		if parts, ok := parsePlainCall(data); ok && wellformed {
			var c Call
			if UnmarshalPayload(data, &c) != nil {
				refusedWithin(t, parts.Args)
				return
			}
			require.Equal(t, c.Endpoint, string(parts.Endpoint))
			require.Equal(t, string(c.Args), string(parts.Args))
			require.Equal(t, c.Handles, parts.Handles)
			require.Equal(t, c.SlabsReturned, parts.SlabsReturned)
			require.Equal(t, c.SlabsDropped, parts.SlabsDropped)
			back, err := AppendCallRequest(nil, Request{}, c)
			require.NoError(t, err)
			require.NotEmpty(t, back)
		}
		if r, ok := parsePlainReturned(data); ok && wellformed {
			var want Returned
			if UnmarshalPayload(data, &want) != nil {
				refusedWithin(t, r.Value)
				return
			}
			require.Equal(t, want, r)
		}
	})
}

// refusedWithin checks that the general codec refuses the content of an argument or value, such as an unknown tag.
func refusedWithin(t *testing.T, raw RawMessage) {
	t.Helper()
	require.Error(t, UnmarshalPayload(raw, new(any)))
}

func TestAppendMarshal(t *testing.T) {
	t.Parallel()
	for _, v := range []any{1, "x", map[string]int{"b": 1, "a": 2}, make([]byte, 2*maxScratch), nil} {
		want, err := Marshal(v)
		require.NoError(t, err)
		got, err := AppendMarshal([]byte{1, 2}, v)
		require.NoError(t, err)
		require.Equal(t, append([]byte{1, 2}, want...), got)
	}
	got, err := AppendMarshal([]byte{1}, func() {})
	require.ErrorIs(t, err, ErrEncoding)
	require.Equal(t, []byte{1}, got)
}

// A head followed by the shared tail equals the message of the general codec.
func TestAcquiredInParts(t *testing.T) {
	t.Parallel()
	m, err := NewManifest([]Tensor{{Name: "w", DType: 12, Shape: []int64{3}}}, []Storage{{Bytes: 64, Type: 1}}, map[string]string{"a": "b"})
	require.NoError(t, err)
	handles := []Handle{{Kind: "memfd", Bytes: 64, File: 0, Name: "n"}}
	for i, lease := range []uint64{0, 23, 24, 255, 256, 1 << 20, math.MaxUint64} {
		source := []string{"", "größer.safetensors"}[i%2]
		digest := [][]byte{nil, make([]byte, 32), nil}[i%3]
		tail, manifest, err := MarshalAcquiredTail(m, handles, source, digest)
		require.NoError(t, err)
		want, err := Marshal(Acquired{Lease: lease, Name: "größer", Version: lease / 2, Manifest: *m, Handles: handles, Source: source, Digest: digest})
		require.NoError(t, err)
		optional := i%2 + len(digest)/32
		require.Equal(t, want, append(AppendAcquiredHead(nil, lease, "größer", lease/2, optional), tail...))
		got, err := UnmarshalAcquired(want)
		require.NoError(t, err)
		require.Equal(t, AcquiredHead{Lease: lease, Name: "größer", Version: lease / 2, Handles: handles, Manifest: EncodedItem(manifest), Source: source, Digest: digest}, got)
	}
	_, manifest, err := MarshalAcquiredTail(m, handles, "", nil)
	require.NoError(t, err)
	model := ModelInfo{Name: "m", Versions: []VersionInfo{{Version: 2}}}
	want, err := Marshal(InfoResult{Model: model, Manifest: m})
	require.NoError(t, err)
	head, err := MarshalInfoHead(&model)
	require.NoError(t, err)
	require.Equal(t, want, append(head, manifest...))
}

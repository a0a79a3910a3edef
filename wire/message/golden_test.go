package message

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire"
)

var update = flag.Bool("update", false, "write fields.json, the index and golden vectors that there are not yet")

// sample is a message of this package with every field set, and the frame that carries it.
type sample struct {
	name  string
	kind  wire.Kind
	op    Op
	files int
	value any
}

func uuid(first byte) (u UUID) {
	for i := range u {
		u[i] = first + byte(i)
	}
	return u
}

func sampleManifest() Manifest {
	digest := func(b byte) []byte {
		d := make([]byte, digestBytes)
		d[0], d[31] = b, b
		return d
	}
	m, err := NewManifest([]Tensor{
		{Name: "embed.weight", DType: 12, Storage: 0, ByteOffset: 0, Shape: []int64{3, 4}, Digest: digest(1)},
		{Name: "embed.weight.T", DType: 12, Storage: 0, ByteOffset: 0, Shape: []int64{4, 3}, Strides: []int64{1, 4}, Digest: digest(2)},
		{Name: "größe", DType: 9, Storage: 1, ByteOffset: 256, Shape: []int64{}, Digest: digest(3)},
	}, []Storage{{Bytes: 4096, Device: uuid(0x10), Type: 1}, {Bytes: 2 << 20, Device: uuid(0x20), Type: 2}},
		map[string]string{"format": "pt", "a": "b"})
	if err != nil {
		panic(err)
	}
	return *m
}

// samples returns all messages, each once with all fields and, if that differs, once with none.
func samples() []sample {
	device := DeviceInfo{UUID: uuid(0x20), Type: 2, Index: 1, Name: "NVIDIA H200"}
	origin := Origin{PID: 4242, UID: 1000, Label: "trainer", Source: "model.safetensors"}
	holder := Holder{Session: 3, Leases: 2, PID: 4243, UID: 1000, Label: "worker", Since: 1_700_000_000_000_000_001}
	version := VersionInfo{Version: 17, Bytes: 1 << 33, Tensors: 291, Current: true, PublishedAt: 1_700_000_000_000_000_000,
		Origin: origin, Holders: []Holder{holder}, Devices: []DeviceInfo{device}}
	model := ModelInfo{Name: "llama", Versions: []VersionInfo{version, {Version: 16, Bytes: 1, Tensors: 1}}, Withdrawn: true}
	handles := []Handle{
		{Kind: "memfd", Device: uuid(0x10), Bytes: 4096, File: 0},
		{Kind: "cuda-ipc", Device: uuid(0x20), Bytes: 2 << 20, Offset: 512, Blob: make([]byte, 64), File: -1},
	}
	loading := Loading{Name: "next", State: LoadRunning, Done: 1 << 20, Total: 1 << 33, StartedAt: 1_700_000_000_000_000_000,
		UpdatedAt: 1_700_000_001_000_000_000, Source: "next.safetensors"}
	failed := Loading{Name: "vad", State: LoadFailed, Error: &Error{Code: CodeOutOfMemory, Message: "out of memory", Type: "out of memory"}}
	manifest := sampleManifest()
	ping, _ := Marshal(Ping{Timestamp: 123456789})
	data, _ := Marshal(map[string]int{"limit": 4096})
	least, _ := Marshal(Call{Endpoint: "load"})
	digest := bytes.Repeat([]byte{0xd1}, 32)
	return append([]sample{
		{"hello", wire.KindHello, 0, 0, &Hello{Protocol: 1, Oldest: 1, Features: []string{"cuda-fd", "watch"}, Server: "8c1f", Version: "0.1.0",
			PID: 4242, Devices: []DeviceInfo{{UUID: uuid(0x10), Type: 1, Name: "host"}, device}, Label: "owner"}},
		{"hello-least", wire.KindHello, 0, 0, &Hello{Protocol: 1, Oldest: 1}},
		{"request", wire.KindRequest, OpPing, 0, &Request{Op: OpPing, Timeout: 5 * time.Second, Body: ping}},
		{"request-least", wire.KindRequest, OpList, 0, &Request{Op: OpList}},
		{"error", wire.KindError, 0, 0, &Error{Code: CodeNotFound, Message: "no model is named x", Type: "catalog.NotFound", Data: data}},
		{"error-details", wire.KindError, 0, 0, &ErrorDetails{Classes: []ErrorClass{{Code: CodeUnsupported, Type: "unsupported"}, {Code: CodeClosed}},
			Cause: &Error{Code: CodeOutOfMemory, Message: "out of memory", Type: "out of memory"}, Object: "a1", Server: "8c1f", Reason: "object_missing",
			Detail: "destroyed by uid 0"}},
		{"cancel", wire.KindCancel, 0, 0, &Cancel{Reason: "the caller left"}},
		{"goodbye", wire.KindGoodbye, 0, 0, &Goodbye{Code: CodeUnavailable, Reason: "the owner stops"}},
		{"empty", wire.KindGoodbye, 0, 0, &Goodbye{}},
		{"ping", wire.KindRequest, OpPing, 0, &Ping{Timestamp: -1}},
		{"pong", wire.KindResponse, OpPing, 0, &Pong{Timestamp: 1 << 62}},
		{"acquire-version", wire.KindRequest, OpAcquire, 0, &Acquire{Name: "llama", Version: 17}},
		{"acquired", wire.KindResponse, OpAcquire, 1, &Acquired{Lease: 9, Name: "llama", Version: 17, Manifest: manifest, Handles: handles}},
		{"release", wire.KindRequest, OpRelease, 0, &Release{Leases: []uint64{9, 10, 1 << 63}}},
		{"released", wire.KindResponse, OpRelease, 0, &Released{Count: 3}},
		{"publish", wire.KindRequest, OpPublish, 1, &Publish{Name: "llama", Manifest: manifest, Handles: handles, Source: "step 17"}},
		{"published", wire.KindResponse, OpPublish, 0, &Published{Version: 18}},
		{"withdraw", wire.KindRequest, OpWithdraw, 0, &Withdraw{Name: "llama"}},
		{"withdrawn", wire.KindResponse, OpWithdraw, 0, &Withdrawn{}},
		{"list", wire.KindRequest, OpList, 0, &List{}},
		{"listed", wire.KindResponse, OpList, 0, &Listed{Models: []ModelInfo{model, {Name: "vad"}}}},
		{"listed-loading", wire.KindResponse, OpList, 0, &Listed{Models: []ModelInfo{}, Loading: []Loading{loading, {Name: "u", State: LoadWaiting}, failed}}},
		{"listed-not-adopted", wire.KindResponse, OpList, 0, &Listed{Models: []ModelInfo{}, NotAdopted: []NotAdopted{
			{Name: "llm", Version: 3, Reason: "no such device", Bytes: 1 << 33, PublishedAt: 1_700_000_000_000_000_000, Source: "llm.gguf"}, {Name: "old", Version: 1, Reason: "out of memory", Withdrawn: true},
		}}},
		{"info-result-loading", wire.KindResponse, OpInfo, 0, &InfoResult{Model: ModelInfo{Name: "next", Versions: []VersionInfo{}}, Loading: &loading}},
		{"listed-withdrawn", wire.KindResponse, OpList, 0, &Listed{Models: []ModelInfo{{Name: "m", Versions: []VersionInfo{{Version: 2, Current: true}, {Version: 1, Withdrawn: true}}}}}},
		{"info", wire.KindRequest, OpInfo, 0, &Info{Name: "llama", Version: 16, Manifest: true}},
		{"info-result", wire.KindResponse, OpInfo, 0, &InfoResult{Model: model, Manifest: &manifest}},
		{"watch", wire.KindRequest, OpWatch, 0, &Watch{Names: []string{"llama", "vad"}}},
		{"watching", wire.KindResponse, OpWatch, 0, &Watching{}},
		{"unwatch", wire.KindRequest, OpUnwatch, 0, &Unwatch{Watch: 5}},
		{"unwatched", wire.KindResponse, OpUnwatch, 0, &Unwatched{}},
		{"publish-digests", wire.KindRequest, OpPublish, 1, &Publish{Name: "llama", Manifest: manifest, Handles: handles, Digests: true}},
		{"info-result-digests", wire.KindResponse, OpInfo, 0, &InfoResult{Model: ModelInfo{Name: "m", Versions: []VersionInfo{
			{Version: 2, Current: true, DigestState: DigestPending}, {Version: 1, DigestState: DigestComputed, Digest: digest},
		}}}},
		{"publish-retain", wire.KindRequest, OpPublish, 1, &Publish{
			Name: "llama", Manifest: manifest, Handles: handles, Retain: &Retention{Versions: 3, Age: time.Hour, Bytes: 1 << 34},
		}},
		{"rollback", wire.KindRequest, OpRollback, 0, &Rollback{Name: "llama", Version: 16}},
		{"digests", wire.KindRequest, OpDigests, 0, &Digests{Name: "llama", Version: 17}},
		{"digested", wire.KindResponse, OpDigests, 0, &Digested{Version: 17, Whole: digest, Tensors: make([]byte, 64)}},
		{"acquire-device", wire.KindRequest, OpAcquire, 0, &Acquire{Name: "llama", Version: 17, Device: &device.UUID}},
		{"listed-placements", wire.KindResponse, OpList, 0, &Listed{Models: []ModelInfo{{Name: "llama", Versions: []VersionInfo{{
			Version: 17, Bytes: 1 << 33, Tensors: 291, Current: true, Origin: origin,
			Holders: []Holder{{Session: 3, Leases: 2, PID: 4243, UID: 1000, Label: "worker", Placements: []UUID{device.UUID}}},
			Devices: []DeviceInfo{{UUID: uuid(0x10), Type: 1, Name: "host"}},
			Placements: []Placement{
				{Device: device, Bytes: 1 << 33, MadeAt: 1_700_000_002_000_000_000, Hits: 5, Holders: 1},
				{Device: device, Bytes: 1 << 33, MadeAt: 1_700_000_002_000_000_000, Hits: 5, UnusedSince: 1_700_000_003_000_000_000},
				{Device: device, Bytes: 1 << 33, Making: true, Holders: 1},
			},
		}}}}}},
		{"server-info-placements", wire.KindResponse, OpServerInfo, 0, &ServerInfo{Server: "8c1f", Placements: []PlacementDevice{{
			Device: device, Budget: 40 << 30, Keep: int64(5 * time.Minute), Bytes: 1 << 33, Placements: 1, Hits: 5, Copies: 2, CopiedBytes: 1 << 34,
			CopyTime: int64(time.Second), Evictions: 1, Failures: 1,
		}}}},
		{"acquire-part", wire.KindRequest, OpAcquire, 0, &Acquire{Name: "llama", Part: &Part{Index: 1, Of: 2}}},
		{"acquired-part", wire.KindResponse, OpAcquire, 1, &Acquired{Lease: 9, Name: "llama", Version: 17, Manifest: manifest, Handles: handles, Digest: digest}},
		{"publish-part", wire.KindRequest, OpPublish, 1, &Publish{Name: "llama", Manifest: manifest, Handles: handles, Part: &Part{Of: 2, Key: "step 17"}}},
		{"digests-part", wire.KindRequest, OpDigests, 0, &Digests{Name: "llama", Version: 17, Part: &Part{Index: 1}}},
		{"listed-parts", wire.KindResponse, OpList, 0, &Listed{
			Models: []ModelInfo{{Name: "llama", Versions: []VersionInfo{{Version: 17, Current: true, Parts: 2}}}},
			Incomplete: []Incomplete{{
				Name: "llama", Of: 3, Parts: []uint64{0, 2}, Bytes: 1 << 33, StartedAt: 1_700_000_000_000_000_000, EndsAt: 1_700_000_300_000_000_000, Key: "step 18",
			}},
		}},
		{"event", wire.KindEvent, OpWatch, 0, &Event{Seq: 77, Kind: EventPublished, Name: "llama", Version: 18}},
	}, append(callSamples(),
		sample{"request-metadata", wire.KindRequest, OpCall, 0, &Request{Op: OpCall, Timeout: time.Second, Body: least, Metadata: Metadata{
			"tracestate": "vendor=1", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		}}},
	)...)
}

// outgrown lists vectors of messages that have lost a key since. Receivers ignore the key, and encode the decoded
// message as the sample of the second name. Acquire had the key 3, writable, which had no effect.
var outgrown = [][2]string{{"acquire", "acquire-version"}}

// vector is one line of testdata/index.json.
type vector struct {
	File    string `json:"file"`    // the encoded message; the same name with .diag has diagnostic notation
	Message string `json:"message"` // the rule in protocol.cddl
	Frame   string `json:"frame"`   // the kind of frame that carries it
	Op      string `json:"op,omitempty"`
	Within  string `json:"within,omitempty"` // the message whose body it is
	Bytes   int    `json:"bytes"`
	Encodes string `json:"encodes,omitempty"` // the vector that it encodes to, if the message has lost a key
}

// Vectors never change. `go test -run Golden -update ./wire/message` writes those of new samples only.
func TestGolden(t *testing.T) {
	t.Parallel()
	var index []vector
	for _, s := range samples() {
		body, err := Marshal(s.value)
		require.NoError(t, err)
		diag, err := cbor.Diagnose(body)
		require.NoError(t, err)
		golden(t, s.name+".cbor", body)
		golden(t, s.name+".diag", []byte(diag+"\n"))
		v := vector{File: s.name + ".cbor", Message: ruleName(reflect.TypeOf(s.value).Elem().Name()), Frame: s.kind.String(), Bytes: len(body)}
		if s.op != 0 {
			v.Op = s.op.String()
		}
		if s.kind == wire.KindRequest && v.Message != "request" {
			v.Within = "request"
		}
		if v.Message == "error-details" {
			v.Within = "error"
		}
		index = append(index, v)
		for _, names := range outgrown {
			if names[1] == s.name {
				index = append(index, outgrownVector(t, names[0], v, body, s.value))
			}
		}

		back := reflect.New(reflect.TypeOf(s.value).Elem())
		require.NoError(t, Unmarshal(body, back.Interface()), s.name)
		again, err := Marshal(back.Interface())
		require.NoError(t, err)
		require.Equal(t, body, again, s.name)
	}
	text, err := json.MarshalIndent(index, "", "  ")
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile("../testdata/index.json", append(text, '\n'), 0o644))
	}
	golden(t, "index.json", append(text, '\n'))

	ping, err := MarshalRequest(OpPing, time.Second, Ping{Timestamp: 1})
	require.NoError(t, err)
	golden(t, "frame-request.bin", bytesOfFrame(wire.KindRequest, 0, 0x0102030405060708, ping))
	golden(t, "frame-files.bin", bytesOfFrame(wire.KindFiles, 253, 7, nil))
	golden(t, "frame-response-files.bin", bytesOfFrame(wire.KindResponse, 2, 7, []byte{0xa0}))
}

// outgrownVector checks a vector with a removed key: its other fields equal the current ones, and its bytes differ.
func outgrownVector(t *testing.T, name string, now vector, bytes []byte, value any) vector {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("../testdata", name+".cbor"))
	require.NoError(t, err)
	diag, err := cbor.Diagnose(body)
	require.NoError(t, err)
	golden(t, name+".diag", []byte(diag+"\n"))
	require.NotEqual(t, bytes, body, "%s is not outgrown", name)
	back := reflect.New(reflect.TypeOf(value).Elem())
	require.NoError(t, Unmarshal(body, back.Interface()), name)
	require.Equal(t, value, back.Interface(), name)
	now.Encodes = now.File
	now.File, now.Bytes = name+".cbor", len(body)
	return now
}

// golden compares with a vector. With -update it writes a missing one.
func golden(t *testing.T, name string, want []byte) {
	t.Helper()
	path := filepath.Join("../testdata", name)
	if _, err := os.Stat(path); *update && os.IsNotExist(err) {
		require.NoError(t, os.WriteFile(path, want, 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "%s differs: vectors never change; a message that is new or has a new key gets a sample, "+
		"and go test -run Golden -update writes its vector", path)
}

func TestCodeNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, "StaleHandle", CodeStaleHandle.String())
	require.Equal(t, "code 15", Code(15).String())
	require.Equal(t, "Closed", CodeClosed.Error())
	require.Equal(t, "ping", OpPing.String())
	require.Equal(t, "operation 0", Op(0).String())
	require.Equal(t, "operation 999", Op(999).String())
	require.Equal(t, "hello", wire.KindHello.String())
	require.Equal(t, "kind 11", wire.Kind(11).String())
	require.Equal(t, "withdrawn", EventWithdrawn.String())
	require.Equal(t, "event", EventKind(99).String())
}

func TestErrorIs(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("acquire: %w", &Error{Code: CodeNotFound, Message: "no model is named x"})
	require.EqualError(t, err, "acquire: no model is named x")
	require.ErrorIs(t, err, CodeNotFound)
	require.NotErrorIs(t, err, CodeClosed)
	require.ErrorIs(t, err, &Error{Code: CodeNotFound})
	require.NotErrorIs(t, err, &Error{Code: CodeNotFound, Message: "another"})
	require.EqualError(t, &Error{Code: CodeTask}, "Task")
}

package safetensors

import (
	"errors"
	"strconv"
	"unicode/utf8"
)

// Errors about one file's header and length, wrapped with the file, if known, and the tensor.
var (
	// ErrTruncated means that a file ends before its header, or before its last tensor.
	ErrTruncated = errors.New("file is truncated")
	// ErrTrailingData means that a file continues after its last tensor.
	ErrTrailingData = errors.New("file has bytes after the last tensor")
	// ErrHeaderTooLarge means that a header exceeds [MaxHeaderBytes]. It is detected before the header is read.
	ErrHeaderTooLarge = errors.New("header is too large")
	// ErrHeaderStart means that the first byte of a header is not '{'.
	ErrHeaderStart = errors.New("header does not begin with '{'")
	// ErrHeaderJSON means that a header is not JSON.
	ErrHeaderJSON = errors.New("header is not valid JSON")
	// ErrTrailingJSON means that a header has data other than white space behind the JSON object.
	ErrTrailingJSON = errors.New("data after the JSON object")
	// ErrUTF8 means that text is not UTF-8.
	ErrUTF8 = errors.New("text is not valid UTF-8")
	// ErrNesting means that JSON is nested deeper than the format allows.
	ErrNesting = errors.New("JSON is nested too deep")
	// ErrType means that a JSON value has the wrong type.
	ErrType = errors.New("JSON value has the wrong type")
	// ErrDuplicateName means that a tensor name occurs twice, in one file or in two shards.
	ErrDuplicateName = errors.New("duplicate tensor name")
	// ErrDuplicateKey means that another key occurs twice in one JSON object.
	ErrDuplicateKey = errors.New("duplicate key")
	// ErrUnknownKey means that a tensor's entry has an unknown key.
	ErrUnknownKey = errors.New("unknown key")
	// ErrMissingKey means that a tensor's entry lacks dtype, shape or data_offsets.
	ErrMissingKey = errors.New("missing key")
	// ErrDType means that the format, or this package, does not know the dtype.
	ErrDType = errors.New("unknown dtype")
	// ErrShape means that a shape has a negative dimension or more than [tensor.MaxRank] dimensions.
	ErrShape = errors.New("bad shape")
	// ErrOverflow means that a number, or a product of dimensions, does not fit 63 bits.
	ErrOverflow = errors.New("number overflows")
	// ErrMisaligned means that the bits of a tensor of a packed dtype do not fill whole bytes.
	ErrMisaligned = errors.New("tensor does not end on a whole byte")
	// ErrOffset means that a data_offsets pair is negative, backwards, or not a pair.
	ErrOffset = errors.New("bad data offsets")
	// ErrLength means that the length of a byte range does not match shape and dtype.
	ErrLength = errors.New("length does not match shape and dtype")
	// ErrOverlap means that two tensors share bytes of the file.
	ErrOverlap = errors.New("tensors overlap")
	// ErrHole means that the data section has bytes that no tensor covers.
	ErrHole = errors.New("hole between tensors")
	// ErrMetadata means that __metadata__ is not a map of strings to strings.
	ErrMetadata = errors.New("bad __metadata__")
	// ErrReservedName means that a tensor to be written has the name __metadata__.
	ErrReservedName = errors.New("tensor name is reserved by the format")
)

// Errors about a path and about models sharded over several files.
var (
	// ErrNoModel means that a directory holds no safetensors model.
	ErrNoModel = errors.New("no safetensors model here")
	// ErrAmbiguous means that a directory holds more than one model.
	ErrAmbiguous = errors.New("more than one model here")
	// ErrNoIndex means that a directory holds shards of a model without their index.
	ErrNoIndex = errors.New("shards without their index")
	// ErrMissingShards means that some shards of an index are missing beside it.
	ErrMissingShards = errors.New("shards are missing")
	// ErrNotRegular means that a path is not a regular file.
	ErrNotRegular = errors.New("not a regular file")
	// ErrIndexTooLarge means that an index exceeds [MaxHeaderBytes].
	ErrIndexTooLarge = errors.New("index is too large")
	// ErrIndexJSON means that an index is not JSON.
	ErrIndexJSON = errors.New("index is not valid JSON")
	// ErrShardName means that the index names a shard with a path instead of a plain file name.
	ErrShardName = errors.New("shard is not a plain file name")
	// ErrNotInShard means that the index places a tensor in a shard that does not contain it.
	ErrNotInShard = errors.New("tensor is not in the shard that the index names")
)

// quote is strconv.Quote for names from files, cut to a limited length.
func quote(name string) string {
	const limit = 120
	if len(name) <= limit {
		return strconv.Quote(name)
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(name[cut]) {
		cut--
	}
	return strconv.Quote(name[:cut]) + "…"
}

package safetensors

import (
	"errors"
	"strconv"
	"unicode/utf8"
)

// Errors about one file's header and length. They come wrapped with the file, where there is one, and the tensor.
var (
	// ErrTruncated is a file that ends before its header does, or before its last tensor does.
	ErrTruncated = errors.New("file is truncated")
	// ErrTrailingData is a file that goes on after its last tensor.
	ErrTrailingData = errors.New("file has bytes after the last tensor")
	// ErrHeaderTooLarge is a header longer than [MaxHeaderBytes]. It is found before the header is read.
	ErrHeaderTooLarge = errors.New("header is too large")
	// ErrHeaderStart is a header whose first byte is not '{'.
	ErrHeaderStart = errors.New("header does not begin with '{'")
	// ErrHeaderJSON is a header that is not JSON.
	ErrHeaderJSON = errors.New("header is not valid JSON")
	// ErrTrailingJSON is a header with something other than white space behind the JSON object.
	ErrTrailingJSON = errors.New("data after the JSON object")
	// ErrUTF8 is text that is not UTF-8.
	ErrUTF8 = errors.New("text is not valid UTF-8")
	// ErrNesting is JSON nested deeper than the format has any use for.
	ErrNesting = errors.New("JSON is nested too deep")
	// ErrType is a JSON value of the wrong type.
	ErrType = errors.New("JSON value has the wrong type")
	// ErrDuplicateName is a tensor name that occurs twice, in one file or in two shards.
	ErrDuplicateName = errors.New("duplicate tensor name")
	// ErrDuplicateKey is any other key that occurs twice in one JSON object.
	ErrDuplicateKey = errors.New("duplicate key")
	// ErrUnknownKey is a key of a tensor's entry that the format does not have.
	ErrUnknownKey = errors.New("unknown key")
	// ErrMissingKey is a tensor's entry without dtype, shape or data_offsets.
	ErrMissingKey = errors.New("missing key")
	// ErrDType is a dtype that the format, or this package, has no name for.
	ErrDType = errors.New("unknown dtype")
	// ErrShape is a shape with a negative dimension or with more of them than [tensor.MaxRank].
	ErrShape = errors.New("bad shape")
	// ErrOverflow is a number, or a product of dimensions, that does not fit 63 bits.
	ErrOverflow = errors.New("number overflows")
	// ErrMisaligned is a tensor of a dtype narrower than a byte whose bits do not fill whole bytes.
	ErrMisaligned = errors.New("tensor does not end on a whole byte")
	// ErrOffset is a data_offsets pair that is negative, backwards, or not a pair.
	ErrOffset = errors.New("bad data offsets")
	// ErrLength is a range of bytes whose length is not what shape and dtype say.
	ErrLength = errors.New("length does not match shape and dtype")
	// ErrOverlap is two tensors that share bytes of the file.
	ErrOverlap = errors.New("tensors overlap")
	// ErrHole is bytes of the data section that no tensor covers.
	ErrHole = errors.New("hole between tensors")
	// ErrMetadata is a __metadata__ that is not a map of strings to strings.
	ErrMetadata = errors.New("bad __metadata__")
	// ErrReservedName is a tensor that is to be written under the name __metadata__.
	ErrReservedName = errors.New("tensor name is reserved by the format")
)

// Errors about a path and about models sharded over several files.
var (
	// ErrNoModel is a directory that holds no safetensors model.
	ErrNoModel = errors.New("no safetensors model here")
	// ErrAmbiguous is a directory that holds more than one model.
	ErrAmbiguous = errors.New("more than one safetensors model here")
	// ErrNoIndex is a directory with shards of a model and without the index that says which there are.
	ErrNoIndex = errors.New("shards without their index")
	// ErrMissingShards is an index whose shards are not all beside it.
	ErrMissingShards = errors.New("shards are missing")
	// ErrNotRegular is a path that is not a regular file where one is needed.
	ErrNotRegular = errors.New("not a regular file")
	// ErrIndexTooLarge is an index longer than [MaxHeaderBytes].
	ErrIndexTooLarge = errors.New("index is too large")
	// ErrIndexJSON is an index that is not JSON.
	ErrIndexJSON = errors.New("index is not valid JSON")
	// ErrShardName is a shard that the index names with a path instead of a plain file name.
	ErrShardName = errors.New("shard is not a plain file name")
	// ErrNotInShard is a tensor that the index places in a shard which does not hold it.
	ErrNotInShard = errors.New("tensor is not in the shard that the index names")
	// ErrNotInIndex is a tensor in a shard that the index does not list.
	ErrNotInIndex = errors.New("tensor is not listed in the index")
)

// quote is strconv.Quote for names out of files: a hostile one may be megabytes long.
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

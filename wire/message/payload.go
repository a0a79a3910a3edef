package message

import (
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// The tags of tensors and state dicts in arguments and results (RFC 8949 §3.4, from the first-come range).
const (
	// TagTensor marks a [TensorRef].
	TagTensor = 50001
	// TagStateDict marks a [StateDictRef].
	TagStateDict = 50002
)

// TensorRef is a tensor in a payload.
type TensorRef struct {
	_ struct{} `cbor:",toarray"`
	// Handle is the index of its storage among the message's handles.
	Handle uint32
	// DType is the number of the data type.
	DType uint8
	// ByteOffset is the offset of the first element in the storage.
	ByteOffset int64
	// Shape are the dimensions.
	Shape []int64
	// Strides are in elements; empty for a contiguous row-major tensor.
	Strides []int64
}

// StateDictRef is a state dict in a payload.
type StateDictRef struct {
	_ struct{} `cbor:",toarray"`
	// Handles are the indices of the manifest's storages among the message's handles.
	Handles []uint32
	// Manifest describes the tensors.
	Manifest Manifest
}

var (
	payloadEncMode = mustPayloadEncMode()
	payloadDecMode = mustPayloadDecMode(cbor.TagsAllowed, cbor.ExtraDecErrorNone)
	plainDecMode   = mustPayloadDecMode(cbor.TagsForbidden, cbor.ExtraDecErrorNone)
	strictDecMode  = mustPayloadDecMode(cbor.TagsForbidden, cbor.ExtraDecErrorUnknownField)
)

func mustPayloadEncMode() cbor.EncMode {
	o := cbor.CoreDetEncOptions()
	o.NilContainers = cbor.NilContainerAsEmpty
	o.Time = cbor.TimeRFC3339NanoUTC
	m, err := o.EncMode()
	if err != nil {
		panic(err) // the options are constants
	}
	return m
}

func mustPayloadDecMode(tags cbor.TagsMode, extra cbor.ExtraDecErrorCond) cbor.DecMode {
	m, err := cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            tags,
		UTF8:              cbor.UTF8RejectInvalid,
		FieldNameMatching: cbor.FieldNameMatchingCaseSensitive,
		MaxNestedLevels:   MaxPayloadDepth,
		MaxArrayElements:  MaxElements,
		MaxMapPairs:       MaxPairs,
		ExtraReturnErrors: extra,
		SimpleValues:      knownSimpleValues,
	}.DecMode()
	if err != nil {
		panic(err) // the options are constants
	}
	return m
}

// MaxPayloadDepth is the maximum nesting of arrays, maps and tags in arguments and results.
const MaxPayloadDepth = 64

// MarshalPayload encodes part of a payload deterministically. Unlike [Marshal] it allows the two tags in raw parts.
func MarshalPayload(v any) (RawMessage, error) {
	b, err := payloadEncMode.Marshal(v)
	if err != nil {
		return nil, encodingError(err)
	}
	return b, checkTexts(b)
}

// UnmarshalPayload decodes part of a payload with the strictness of [Unmarshal]. Raw parts may contain tags, which
// their decoders check.
func UnmarshalPayload(data []byte, v any) error {
	if err := payloadDecMode.Unmarshal(data, v); err != nil {
		return decodingError(err)
	}
	return checkPayloadTags(data)
}

// unmarshalEnvelope decodes a message that may contain tags under one key only. The decoder of that value checks them.
func unmarshalEnvelope(data []byte, free uint64, v any) error {
	if err := payloadDecMode.Unmarshal(data, v); err != nil {
		return decodingError(err)
	}
	return checkEnvelopeTags(data, free)
}

// UnmarshalPlain decodes part of a payload without tags. It is [Unmarshal] with the depth of payloads.
func UnmarshalPlain(data []byte, v any) error {
	if err := plainDecMode.Unmarshal(data, v); err != nil {
		return decodingError(err)
	}
	return nil
}

// CheckPayload refuses a payload that every receiver would refuse: nested too deep, or with too long an array or map.
// The sender thus gets the reason.
func CheckPayload(data []byte) error {
	if err := payloadDecMode.Wellformed(data); err != nil {
		return decodingError(err)
	}
	return nil
}

// UnmarshalStrict is [UnmarshalPlain] that also refuses map keys without a field in v.
func UnmarshalStrict(data []byte, v any) error {
	if err := strictDecMode.Unmarshal(data, v); err != nil {
		return decodingError(err)
	}
	return nil
}

// ValidatePayload refuses a payload that is not well-formed, exceeds the limits, or has tags other than those of tensors
// and state dicts. It does not check texts and duplicate keys.
func ValidatePayload(data []byte) error {
	if err := CheckPayload(data); err != nil {
		return err
	}
	return checkPayloadTags(data)
}

// MarshalTagged encodes a [TensorRef] or [StateDictRef] with its tag.
func MarshalTagged(tag uint64, ref any) (RawMessage, error) {
	return MarshalPayload(cbor.Tag{Number: tag, Content: ref})
}

// UnmarshalTagged decodes the result of MarshalTagged. Another tag, or none, is [ErrEncoding].
func UnmarshalTagged(data []byte, tag uint64, ref any) error {
	number, ok := PayloadTag(data)
	if !ok {
		return fmt.Errorf("%w: an item without a tag is where tag %d belongs", ErrEncoding, tag)
	}
	if number != tag {
		return fmt.Errorf("%w: tag %d is where %d belongs", ErrEncoding, number, tag)
	}
	_, content, _ := readLength(data)
	return Unmarshal(content, ref)
}

// PayloadTag returns the first tag of data, or false if data does not begin with a tag.
func PayloadTag(data []byte) (uint64, bool) {
	if len(data) == 0 || data[0]>>5 != cborTag || payloadDecMode.Wellformed(data) != nil {
		return 0, false
	}
	tag, _, ok := readLength(data)
	return tag, ok
}

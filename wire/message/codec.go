package message

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fxamacker/cbor/v2"
)

// RawMessage is one encoded CBOR item inside a message.
type RawMessage = cbor.RawMessage

// Limits of the decoder. They hold for every message; the size of the input bounds the rest.
const (
	// MaxDepth is the maximum nesting of arrays and maps.
	MaxDepth = 16
	// MaxElements is the maximum number of elements of an array.
	MaxElements = 1 << 20
	// MaxPairs is the maximum number of pairs of a map.
	MaxPairs = 1 << 16
)

var (
	encMode = mustEncMode()
	decMode = mustDecMode()
)

// knownSimpleValues refuses all simple values but false, true, null and undefined (RFC 8949 §3.3). No program sends
// others, and what was decoded from them could not be encoded.
var knownSimpleValues = mustKnownSimpleValues()

func mustKnownSimpleValues() *cbor.SimpleValueRegistry {
	var refused []func(*cbor.SimpleValueRegistry) error
	for n := range 256 {
		if n < 20 || n >= 32 { // 24 to 31 are not well-formed
			refused = append(refused, cbor.WithRejectedSimpleValue(cbor.SimpleValue(n)))
		}
	}
	r, err := cbor.NewSimpleValueRegistryFromDefaults(refused...)
	if err != nil {
		panic(err) // the values are constants
	}
	return r
}

// mustEncMode returns RFC 8949 core deterministic encoding (§4.2.1): equal values have equal bytes.
func mustEncMode() cbor.EncMode {
	o := cbor.CoreDetEncOptions()
	o.TagsMd = cbor.TagsForbidden
	o.NilContainers = cbor.NilContainerAsEmpty
	o.Time = cbor.TimeRFC3339NanoUTC // the library's default drops fractions of a second
	m, err := o.EncMode()
	if err != nil {
		panic(err) // the options are constants
	}
	return m
}

func mustDecMode() cbor.DecMode {
	m, err := cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            cbor.TagsForbidden,
		UTF8:              cbor.UTF8RejectInvalid,
		FieldNameMatching: cbor.FieldNameMatchingCaseSensitive,
		MaxNestedLevels:   MaxDepth,
		MaxArrayElements:  MaxElements,
		MaxMapPairs:       MaxPairs,
		SimpleValues:      knownSimpleValues,
	}.DecMode()
	if err != nil {
		panic(err) // the options are constants
	}
	return m
}

// Marshal encodes a message deterministically: equal values have equal bytes. Errors are [ErrEncoding], also for a text
// that is not UTF-8, and [ErrType] for a type without encoding. [MarshalShown] encodes messages for display.
func Marshal(v any) ([]byte, error) {
	b, err := encMode.Marshal(v)
	if err != nil {
		return nil, encodingError(err)
	}
	return b, checkTexts(b)
}

// encodingError converts an error of the encoder.
func encodingError(err error) error {
	var unsupported *cbor.UnsupportedTypeError
	if errors.As(err, &unsupported) {
		return fmt.Errorf("%w: %w: %s", ErrEncoding, ErrType, unsupported.Type)
	}
	return fmt.Errorf("%w: %w", ErrEncoding, err)
}

// Unmarshal decodes data, which must be exactly one CBOR item, into the message that v points to. It refuses indefinite
// lengths, tags, duplicate map keys, invalid UTF-8, nesting deeper than [MaxDepth] and bytes behind the item. Map keys
// that the message does not have are ignored, so that later versions can add fields. v keeps nothing of data. On an
// error, which is [ErrEncoding], v may be partly filled.
func Unmarshal(data []byte, v any) error {
	if err := decMode.Unmarshal(data, v); err != nil {
		return decodingError(err)
	}
	return nil
}

// decodingError converts an error of the decoder.
func decodingError(err error) error {
	var depth *cbor.MaxNestedLevelError
	var elements *cbor.MaxArrayElementsError
	var pairs *cbor.MaxMapPairsError
	var indefinite *cbor.IndefiniteLengthError
	if errors.As(err, &depth) || errors.As(err, &elements) || errors.As(err, &pairs) || errors.As(err, &indefinite) {
		return fmt.Errorf("%w: %w: %w", ErrEncoding, ErrBounds, err)
	}
	var kind *cbor.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Errorf("%w: %s", ErrEncoding, misfit(kind))
	}
	return fmt.Errorf("%w: %w", ErrEncoding, err)
}

// misfit describes an item of the wrong type. It omits the codec's Go types, which mean nothing to a peer in another
// language.
func misfit(e *cbor.UnmarshalTypeError) string {
	text := "an item of type " + e.CBORType
	if i := strings.LastIndexByte(e.StructFieldName, '.'); i >= 0 {
		text += " under the key " + e.StructFieldName[i+1:]
	}
	if !strings.Contains(e.GoType, ".") {
		text += ", where " + e.GoType + " belongs"
	}
	return text
}

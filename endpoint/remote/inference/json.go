package inference

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/nonfinite"
)

// parseElements encodes elements from a JSON list, flat or nested. Their count must match the shape. text must be
// well-formed JSON.
func parseElements(text json.RawMessage, d string, shape []int64) ([]byte, error) {
	n, err := elementCount(shape)
	if err != nil {
		return nil, err
	}
	if _, err := dtypeOf(d); err != nil && d != bytesType {
		return nil, err
	}
	var b []byte
	count := int64(0)
	for at := 0; at < len(text); {
		switch c := text[at]; c {
		case ' ', '\t', '\r', '\n', ',', '[', ']':
			at++
			continue
		case '{':
			return nil, fmt.Errorf("%w: data contains an object, not elements", ErrInvalid)
		}
		end := tokenEnd(text, at)
		if b, err = appendToken(b, d, text[at:end]); err != nil {
			return nil, err
		}
		if count++; count > n {
			break
		}
		at = end
	}
	if count != n {
		return nil, fmt.Errorf("%w: data does not have the %d elements of shape %v", ErrInvalid, n, shape)
	}
	return b, nil
}

// tokenEnd returns the end of the number, word or string that starts at a position.
func tokenEnd(text []byte, at int) int {
	if text[at] == '"' {
		for i := at + 1; i < len(text); i++ {
			switch text[i] {
			case '\\':
				i++
			case '"':
				return i + 1
			}
		}
		return len(text)
	}
	for i := at; i < len(text); i++ {
		switch text[i] {
		case ' ', '\t', '\r', '\n', ',', '[', ']', '{', '}', '"':
			return max(i, at+1)
		}
	}
	return len(text)
}

// appendToken encodes one element.
func appendToken(b []byte, d string, token []byte) ([]byte, error) {
	bad := func() ([]byte, error) { return b, fmt.Errorf("%w: %s is not %s", ErrInvalid, clip(string(token)), d) }
	word := string(token)
	switch kindOf(d) {
	case byteTexts:
		var s string
		if !exactText(token) || json.Unmarshal(token, &s) != nil {
			return bad()
		}
		return appendText(b, []byte(s)), nil
	case truths:
		switch word {
		case "true", "1":
			return append(b, 1), nil
		case "false", "0":
			return append(b, 0), nil
		}
		return bad()
	case integers:
		if i, err := strconv.ParseInt(word, 10, 64); err == nil {
			return appendInteger(b, d, i, uint64(i), i < 0)
		}
		if u, err := strconv.ParseUint(word, 10, 64); err == nil {
			return appendInteger(b, d, 0, u, false)
		}
		f, err := strconv.ParseFloat(word, 64)
		if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return bad()
		}
		return appendInteger(b, d, int64(f), uint64(int64(f)), f < 0)
	}
	bits := 64
	if d == "FP32" {
		bits = 32 // FP16 and BF16 are rounded once, by appendFloat
	}
	if token[0] == '"' {
		if word = strings.Trim(word, `"`); !slices.Contains(nonfinite.Words, word) {
			return bad()
		}
	}
	f, err := strconv.ParseFloat(word, bits)
	if err != nil {
		return bad()
	}
	return appendFloat(b, d, f)
}

// exactText reports whether the token is a string that json.Unmarshal decodes without replacing anything: valid UTF-8
// without halves of surrogate pairs.
func exactText(token []byte) bool {
	if token[0] != '"' || !utf8.Valid(token) {
		return false
	}
	for i := 0; i < len(token); i++ {
		if token[i] != '\\' {
			continue
		}
		if i++; i >= len(token) || token[i] != 'u' {
			continue
		}
		unit := hexUnit(token, i+1)
		i += 4
		if !utf16.IsSurrogate(unit) {
			continue
		}
		if i+2 >= len(token) || token[i+1] != '\\' || token[i+2] != 'u' || utf16.DecodeRune(unit, hexUnit(token, i+3)) == utf8.RuneError {
			return false
		}
		i += 6
	}
	return true
}

// hexUnit returns the number of four hexadecimal digits, or -1.
func hexUnit(token []byte, at int) rune {
	if at+4 > len(token) {
		return -1
	}
	n, err := strconv.ParseUint(string(token[at:at+4]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}

// formatElements returns the elements as a flat JSON list.
func formatElements(raw []byte, d string) (json.RawMessage, error) {
	b := []byte{'['}
	switch values, err := listOf(raw, d); v := values.(type) {
	case nil:
		return nil, err
	case []bool:
		b = formatEach(b, v, strconv.AppendBool)
	case []int8:
		b = formatEach(b, v, appendSigned[int8])
	case []int16:
		b = formatEach(b, v, appendSigned[int16])
	case []int32:
		b = formatEach(b, v, appendSigned[int32])
	case []int64:
		b = formatEach(b, v, appendSigned[int64])
	case []uint16:
		b = formatEach(b, v, appendUnsigned[uint16])
	case []uint32:
		b = formatEach(b, v, appendUnsigned[uint32])
	case []uint64:
		b = formatEach(b, v, appendUnsigned[uint64])
	case []float32:
		b = formatEach(b, v, func(b []byte, f float32) []byte { return appendJSONFloat(b, float64(f), 32) })
	case []float64:
		b = formatEach(b, v, func(b []byte, f float64) []byte { return appendJSONFloat(b, f, 64) })
	case [][]byte:
		for i, text := range v {
			if !utf8.Valid(text) {
				return nil, errNoJSON
			}
			quoted, err := json.Marshal(string(text))
			if err != nil {
				return nil, err
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, quoted...)
		}
	}
	return append(b, ']'), nil
}

// mark precedes the words for numbers that are not finite until bareWords removes it. Clients cannot guess it.
var mark = rand.Text()

// appendJSONFloat appends a number. NaN and infinities are marked strings for bareWords.
func appendJSONFloat(b []byte, f float64, bits int) []byte {
	word := ""
	switch {
	case math.IsNaN(f):
		word = "NaN"
	case math.IsInf(f, 1):
		word = "Infinity"
	case math.IsInf(f, -1):
		word = "-Infinity"
	default:
		start := len(b)
		if b = strconv.AppendFloat(b, f, 'g', -1, bits); !bytes.ContainsAny(b[start:], ".e") {
			b = append(b, ".0"...) // as Triton does: parsers read -0 as an integer, which has no sign
		}
		return b
	}
	return append(append(append(append(b, '"'), mark...), word...), '"')
}

// bareWords replaces the marked strings in JSON with the bare words NaN, Infinity and -Infinity, as Triton writes them.
// They are not JSON, but the parsers of Python and RapidJSON read them. json.Marshal refuses them.
func bareWords(text []byte) []byte {
	if !bytes.Contains(text, []byte(mark)) {
		return text
	}
	for _, word := range nonfinite.Words {
		text = bytes.ReplaceAll(text, []byte(`"`+mark+word+`"`), []byte(word))
	}
	return text
}

// errNoJSON is returned for an element that JSON cannot represent.
var errNoJSON = fmt.Errorf("%w: an element is not UTF-8, which JSON requires: request binary_data", ErrNotServed)

// listOf decodes all elements. BYTES become byte slices.
func listOf(raw []byte, d string) (any, error) {
	if d != bytesType {
		return list(d, raw)
	}
	parts := [][]byte{}
	for len(raw) >= 4 {
		size := 4 + int(little.Uint32(raw))
		parts = append(parts, raw[4:size])
		raw = raw[size:]
	}
	return parts, nil
}

func formatEach[T any](b []byte, values []T, format func([]byte, T) []byte) []byte {
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = format(b, v)
	}
	return b
}

func appendSigned[T int8 | int16 | int32 | int64](b []byte, v T) []byte {
	return strconv.AppendInt(b, int64(v), 10)
}

func appendUnsigned[T uint16 | uint32 | uint64](b []byte, v T) []byte {
	return strconv.AppendUint(b, uint64(v), 10)
}

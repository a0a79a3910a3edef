package gguf

import (
	"fmt"
	"strconv"
	"strings"
)

// Entry is one key of the metadata with its value.
type Entry struct {
	// Key is unique in the file, such as "general.architecture".
	Key string
	// Value is a uint8, int8, uint16, int16, uint32, int32, uint64, int64, float32, float64, bool or string, or a slice of
	// one of these.
	Value any
}

// Metadata is the metadata of a file, in its order.
type Metadata []Entry

// Get returns the value of a key, or nil.
func (m Metadata) Get(key string) any {
	for i := range m {
		if m[i].Key == key {
			return m[i].Value
		}
	}
	return nil
}

// Uint returns the value of a key if it is a nonnegative integer of any size.
func (m Metadata) Uint(key string) (value uint64, ok bool) {
	switch v := m.Get(key).(type) {
	case uint8:
		return uint64(v), true
	case uint16:
		return uint64(v), true
	case uint32:
		return uint64(v), true
	case uint64:
		return v, true
	case int8:
		return uint64(v), v >= 0
	case int16:
		return uint64(v), v >= 0
	case int32:
		return uint64(v), v >= 0
	case int64:
		return uint64(v), v >= 0
	}
	return 0, false
}

// maxTextBytes is the maximum length of a value in [Metadata.Texts].
const maxTextBytes = 64 << 10

// Texts returns the scalars and strings as text, for the metadata of a state dict: numbers in decimal, bools as true or
// false. Arrays, such as the vocabulary of a tokenizer, and strings above 64 KiB are omitted. The caller owns the map.
func (m Metadata) Texts() map[string]string {
	texts := make(map[string]string, len(m))
	for _, e := range m {
		if text, ok := textOf(e.Value); ok && len(text) <= maxTextBytes {
			texts[e.Key] = text
		}
	}
	return texts
}

func textOf(value any) (text string, ok bool) {
	switch v := value.(type) {
	case string:
		return strings.ToValidUTF8(v, "\uFFFD"), true
	case bool:
		return strconv.FormatBool(v), true
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32), true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), true
	case uint8, int8, uint16, int16, uint32, int32, uint64, int64:
		return fmt.Sprint(v), true
	}
	return "", false
}

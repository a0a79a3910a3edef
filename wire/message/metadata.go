package message

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Metadata holds texts of a request by name, such as its trace. Their meaning is a matter of the two programs.
type Metadata map[string]string

// Limits of the metadata of one request, so that a server can keep it without accounting.
const (
	// MaxMetadata is the maximum number of texts.
	MaxMetadata = 32
	// MaxMetadataName is the maximum length of a name in bytes.
	MaxMetadataName = 64
	// MaxMetadataBytes is the maximum size of names and texts together in bytes.
	MaxMetadataBytes = 8 << 10
)

// Check refuses metadata that receivers refuse: too many texts or bytes; names that are empty, longer than
// [MaxMetadataName] or contain characters other than a to z, 0 to 9, '-', '_' and '.'; texts with characters other than
// printable ASCII. Errors are [ErrBounds], which is [ErrEncoding] too.
func (m Metadata) Check() error {
	if len(m) > MaxMetadata {
		return metadataError("%d texts, at most %d may go with a request", len(m), MaxMetadata)
	}
	bytes := 0
	for name, text := range m {
		if err := checkMetadataText(name, text); err != nil {
			return err
		}
		bytes += len(name) + len(text)
	}
	return checkMetadataBytes(bytes)
}

func checkMetadataText(name, text string) error {
	switch {
	case len(name) == 0 || len(name) > MaxMetadataName:
		return metadataError("a name of %d bytes, it has 1 to %d", len(name), MaxMetadataName)
	case strings.ContainsFunc(name, func(r rune) bool { return !isMetadataName(r) }):
		return metadataError("the name %q, it may have a to z, 0 to 9, '-', '_' and '.'", name)
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }):
		return metadataError("the text of %q has other characters than the printable ones of ASCII", name)
	}
	return nil
}

func isMetadataName(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
}

func checkMetadataBytes(n int) error {
	if n > MaxMetadataBytes {
		return metadataError("%d bytes, at most %d may go with a request", n, MaxMetadataBytes)
	}
	return nil
}

func metadataError(format string, args ...any) error {
	return fmt.Errorf("%w: %w: metadata: "+format, append([]any{ErrEncoding, ErrBounds}, args...)...)
}

// UnmarshalCBOR decodes a map of texts, and applies Check before it keeps any of it.
func (m *Metadata) UnmarshalCBOR(data []byte) error {
	got, err := parseMetadata(data)
	if err == nil {
		*m = got
	}
	return err
}

// parseMetadata decodes one well-formed item.
func parseMetadata(data []byte) (Metadata, error) {
	if len(data) == 0 || data[0]>>5 != cborMap {
		return nil, fmt.Errorf("%w: the metadata of a request is no map", ErrEncoding)
	}
	n, rest, ok := readLength(data)
	if ok && n > MaxMetadata {
		return nil, metadataError("%d texts, at most %d may go with a request", n, MaxMetadata)
	}
	if len(data) > 2*MaxMetadataBytes { // including heads
		return nil, checkMetadataBytes(len(data))
	}
	m, bytes := make(Metadata, n), 0
	for ; ok && n > 0; n-- {
		var name, text []byte
		if name, rest, ok = readText(rest); !ok {
			break
		}
		if text, rest, ok = readText(rest); !ok {
			break
		}
		if err := checkMetadataText(string(name), string(text)); err != nil {
			return nil, err
		}
		if _, twice := m[string(name)]; twice {
			return nil, fmt.Errorf("%w: metadata has the name %q twice", ErrEncoding, name)
		}
		m[string(name)] = string(text)
		bytes += len(name) + len(text)
	}
	if !ok || len(rest) > 0 {
		return nil, fmt.Errorf("%w: the metadata of a request is no map of texts", ErrEncoding)
	}
	return m, checkMetadataBytes(bytes)
}

// appendMetadata appends the encoding of m, which must have passed Check, as [Marshal] returns it.
func appendMetadata(b []byte, m Metadata) []byte {
	b = appendHead(b, cborMap, uint64(len(m)))
	names := slices.SortedFunc(maps.Keys(m), func(a, b string) int { // by their encoding: shorter names first
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		b = append(appendHead(b, cborText, uint64(len(name))), name...)
		b = append(appendHead(b, cborText, uint64(len(m[name]))), m[name]...)
	}
	return b
}

package catalog

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// MaxNameBytes is the longest name, in bytes of UTF-8.
const MaxNameBytes = 255

// CheckName reports whether name can be published: 1 to [MaxNameBytes] bytes of valid UTF-8 without control characters.
// Anything else, blanks and slashes too, is allowed; names are compared byte by byte. Errors are [ErrName].
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrName)
	case len(name) > MaxNameBytes:
		return fmt.Errorf("%w: %d bytes, more than %d", ErrName, len(name), MaxNameBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w %q: not UTF-8", ErrName, name)
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w %q: control character %U", ErrName, name, r)
		}
	}
	return nil
}

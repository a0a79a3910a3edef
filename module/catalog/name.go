package catalog

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxNameBytes is the maximum length of a name in bytes of UTF-8.
const MaxNameBytes = 255

// CheckName returns nil if name can be published: 1 to [MaxNameBytes] bytes of valid UTF-8 without control characters,
// spaces and slashes allowed. No part between slashes is "." or "..", because programs use names as paths. Names are
// compared byte by byte. Errors are [ErrName].
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrName)
	case len(name) > MaxNameBytes:
		return fmt.Errorf("%w: %d bytes, more than %d", ErrName, len(name), MaxNameBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w %q: not UTF-8", ErrName, name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "." || part == ".." {
			return fmt.Errorf("%w %q: %q is a part of it, as of a path to another folder", ErrName, name, part)
		}
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w %q: control character %U", ErrName, name, r)
		}
	}
	return nil
}

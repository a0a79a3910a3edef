package module

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Errors of this package, wrapped with the tensor. Those of files are in package safetensors, those of specs in package
// tensor.
var (
	// ErrName is a tensor name that is empty or not UTF-8.
	ErrName = errors.New("bad tensor name")
	// ErrDuplicateName is a name that a state dict or manifest has twice.
	ErrDuplicateName = errors.New("duplicate tensor name")
	// ErrManifest is a manifest that does not hold: a storage that is not there, or not what the manifest says it is.
	ErrManifest = errors.New("manifest refused")
	// ErrTooLarge is a model whose tensors together do not fit 63 bits of address.
	ErrTooLarge = errors.New("model is too large")
	// ErrDigest is a state dict that has another digest than was expected.
	ErrDigest = errors.New("the tensors are not those that were expected")
	// ErrIncompatible is a state dict that has another compatibility key than was expected.
	ErrIncompatible = errors.New("the state dict is not compatible")
)

// quote is strconv.Quote for names that a peer or a file chose: a hostile one may be megabytes long.
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

// checkName refuses names that a file or message could not carry.
func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %s is not UTF-8", ErrName, quote(name))
	}
	return nil
}

package module

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Errors of this package, wrapped with the tensor. Errors of files are in package safetensors, errors of specs in
// package tensor.
var (
	// ErrName means that a tensor name is empty or not UTF-8.
	ErrName = errors.New("bad tensor name")
	// ErrDuplicateName means that a state dict or manifest has a name twice.
	ErrDuplicateName = errors.New("duplicate tensor name")
	// ErrManifest means that a storage is missing, or differs from its description in the manifest.
	ErrManifest = errors.New("manifest refused")
	// ErrLayout means that [LoadOptions.FileLayout] is not possible for the model or with the other options.
	ErrLayout = errors.New("no file layout")
	// ErrTooLarge means that the tensors together do not fit 63 bits of address.
	ErrTooLarge = errors.New("model is too large")
	// ErrFormat means that the format of a file cannot represent the state dict or an option.
	ErrFormat = errors.New("the file format cannot represent this")
	// ErrDigest means that a state dict does not have the expected digest.
	ErrDigest = errors.New("the tensors are not those that were expected")
	// ErrIncompatible means that a state dict does not have the expected compatibility key.
	ErrIncompatible = errors.New("the state dict is not compatible")
)

// quote is strconv.Quote for names chosen by a peer or a file, cut to a limited length.
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

//go:build !linux || (!amd64 && !arm64) || nocuda

package cu

import "errors"

var errBuild = errors.New("this build has no support for CUDA: it needs Linux on amd64 or arm64, and no build tag nocuda")

// Load opens the driver's library. In this build it always fails, with a [*LibraryError].
func Load(path string) error { return &LibraryError{Err: errBuild} }

// Path is the name under which the library was opened; in this build it is always empty.
func Path() string { return "" }

// UsePerThreadDefaultStream selects a default stream per thread. In this build it always fails, with a [*LibraryError].
func UsePerThreadDefaultStream() error { return &LibraryError{Err: errBuild} }

func address(f function) (uintptr, Result) { return 0, missingResult(f) }

func callFloat(f function, a0, a1 uintptr, x0, x1 float32) Result { return missingResult(f) }

func unsupported(f function) error {
	e := &table[f]
	return &UnsupportedError{Function: e.name, Symbol: e.symbol, Since: e.since, Err: &LibraryError{Err: errBuild}}
}

// NewCallback makes a C function of a Go function. In this build it always fails, with a [*LibraryError].
func NewCallback(fn any) (callback uintptr, err error) { return 0, &LibraryError{Err: errBuild} }

func procAddressFlags(flags uint64) uint64 { return flags }

//go:build !linux || (!amd64 && !arm64) || nocuda

package dl

import "errors"

var errBuild = errors.New("this build has no support for CUDA: it needs Linux on amd64 or arm64, and no build tag nocuda")

// Library is a shared library. In this build it cannot be opened.
type Library struct{ config Config }

// New returns a library that cannot be opened in this build.
func New(c Config) *Library { return &Library{config: c} }

// Load opens the library. In this build it always returns a [*LibraryError].
func (l *Library) Load(path string) error { return l.error() }

func (l *Library) error() error { return l.config.failed(nil, errBuild) }

// Open opens a library. In this build it always returns a [*LibraryError].
func Open(c *Config, path string) (handle uintptr, name string, err error) {
	return 0, "", c.failed(nil, errBuild)
}

// Path returns the name under which the library was opened. In this build it is always empty.
func (l *Library) Path() string { return "" }

// File returns the path of the library's file. In this build it is always empty.
func (l *Library) File() string { return "" }

func (l *Library) address(f int) uintptr { return 0 }

func (l *Library) unsupported(f int) error {
	return &UnsupportedError{Function: l.config.Functions[f].Name, Symbol: l.config.Functions[f].Symbol, Err: l.error()}
}

// Call returns the code that means that f is missing.
func (l *Library) Call(f int, words ...uintptr) int32 { return missingCode(f) }

// CallString returns an empty text, because f is missing.
func (l *Library) CallString(f int, words ...uintptr) string { return "" }

// NewCallback returns a C function that calls fn. In this build it always returns [errors.ErrUnsupported].
func NewCallback(fn any) (callback uintptr, err error) { return 0, errors.ErrUnsupported }

package dl

import (
	"errors"
	"strconv"
	"strings"
)

// Version is a CUDA version in the driver's format: 1000 times the major plus 10 times the minor number.
type Version int32

// String returns the version in the usual form, such as 12.8, and "unknown" for 0.
func (v Version) String() string {
	if v <= 0 {
		return "unknown"
	}
	return strconv.Itoa(int(v/1000)) + "." + strconv.Itoa(int(v%1000/10))
}

// UnsupportedError describes a function that could not be called. It matches [errors.ErrUnsupported] with errors.Is, and
// also the package's error for a missing library if that is the cause.
type UnsupportedError struct {
	// Function is the C name of the function, such as cuMemGetMemPool.
	Function string
	// Symbol is the symbol that was looked up in the library, such as cuMemAlloc_v2.
	Symbol string
	// Since is the CUDA version that introduced the symbol. Drivers for that version or newer have it. It is 0 if
	// unknown, and for libraries other than the driver's.
	Since Version
	// Library is the library that lacks the symbol. It is empty if there is no library.
	Library string
	// Err is the cause: a [*LibraryError], or the dynamic linker's error.
	Err error
}

// Error names the function, the library and what is needed.
func (e *UnsupportedError) Error() string {
	switch {
	case e.Library == "":
		return e.Function + ": " + e.Err.Error()
	case e.Since > 0:
		return e.Function + " is not in " + e.Library + ": it needs a driver for CUDA " + e.Since.String() + " or newer"
	}
	return e.Function + " is not in " + e.Library + ": it needs a newer version of the library"
}

// Unwrap returns the cause.
func (e *UnsupportedError) Unwrap() error { return e.Err }

// Is makes the error match [errors.ErrUnsupported].
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// LibraryError means that a library was not found or cannot be loaded. It matches [errors.ErrUnsupported] and the package's
// error for a missing library with errors.Is.
type LibraryError struct {
	// Title is the library's name.
	Title string
	// Env is the environment variable with the library's path.
	Env string
	// Tried lists the names under which the library was searched, in order. It is empty in a build without CUDA.
	Tried []string
	// Found is the first of these that exists but cannot be loaded. It is empty if none was found.
	Found string
	// Err is the reason for Found or, if that is empty, for the first name.
	Err error

	noLibrary error
}

// failed returns the error for a library that was searched under the names.
func (c *Config) failed(tried []string, err error) *LibraryError {
	return &LibraryError{Title: c.Title, Env: c.Env, Tried: tried, Err: err, noLibrary: c.NoLibrary}
}

// Error returns the names that were tried, the reason, and the remedy.
func (e *LibraryError) Error() string {
	s := "no " + e.Title + " library"
	switch {
	case e.Found != "":
		s = "the " + e.Title + " library " + e.Found + " cannot be loaded"
	case len(e.Tried) > 1:
		s += " (tried " + strings.Join(e.Tried, ", ") + "; " + e.Env + " sets its path)"
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *LibraryError) Unwrap() error { return e.Err }

// Is makes the error match [errors.ErrUnsupported] and the package's error for a missing library.
func (e *LibraryError) Is(target error) bool {
	return target == errors.ErrUnsupported || target == e.noLibrary && target != nil
}

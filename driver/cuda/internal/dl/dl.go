// Package dl loads a shared library at run time and calls its functions. Symbols are resolved at their first call, so a
// library that lacks a function fails only the calls of that function. The packages nvrtc, nvjitlink and nvml use it. Package cu,
// whose calls have paths of their own, uses [Open] and the errors.
//
// A function returns its int32 code. Codes that the libraries do not use identify a function that could not be called:
// firstMissing and the numbers below it.
package dl

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

// Function describes a function of a library.
type Function struct {
	// Name is the C name.
	Name string
	// GoName is the name in the package that binds the library.
	GoName string
	// Symbol is the symbol that is looked up in the library.
	Symbol string
}

// Config describes a library.
type Config struct {
	// Title is the library's name in errors, such as NVRTC.
	Title string
	// Env is the environment variable with the library's path.
	Env string
	// NoLibrary is the error that a [LibraryError] matches.
	NoLibrary error
	// Names are the file names, newest version first. A name with a slash is a path.
	Names []string
	// Wheel lists the folders of Python wheels below site-packages, newest first. If it is empty, the library is part of
	// the driver and is searched only by name.
	Wheel []string
	// Functions is the table of functions. Calls use its indices.
	Functions []Function
	// ResultType is the C type of the result codes, and Results describes the codes. Code 0 is success.
	ResultType string
	Results    map[int32]Result
}

// Result describes a result code.
type Result struct {
	// Name is the vendor's name, Text the meaning in a few words.
	Name, Text string
}

// firstMissing is the code of function 0 if it is missing. Function f has firstMissing-f.
const firstMissing = -1 << 16

// missing returns the function that a code describes as missing.
func (l *Library) missing(code int32) (f int, ok bool) {
	f = firstMissing - int(code)
	return f, f >= 0 && f < len(l.config.Functions)
}

// missingCode returns the code that means that f could not be called.
func missingCode(f int) int32 { return int32(firstMissing - f) }

// ResultName returns the vendor's name of a code. A code without a name is formatted as a number.
func (l *Library) ResultName(code int32) string {
	if f, ok := l.missing(code); ok {
		return l.config.Functions[f].Name + " is missing"
	}
	if r, ok := l.config.Results[code]; ok {
		return r.Name
	}
	return l.config.ResultType + "(" + strconv.Itoa(int(code)) + ")"
}

// ResultText describes a code in a few words. It is empty for an unknown code.
func (l *Library) ResultText(code int32) string { return l.config.Results[code].Text }

// MissingError returns an [*UnsupportedError] for a code that describes a function as missing, and nil for a code of the
// library.
func (l *Library) MissingError(code int32) error {
	f, ok := l.missing(code)
	if !ok {
		return nil
	}
	return l.unsupported(f)
}

// Functions returns the table of functions.
func (l *Library) Functions() []Function { return append([]Function(nil), l.config.Functions...) }

// Available returns nil if the function can be called, and otherwise an [*UnsupportedError]. name is the C name or the Go
// name.
func (l *Library) Available(name string) error {
	for i, f := range l.config.Functions {
		if f.Name == name || f.GoName == name {
			if l.address(i) == 0 {
				return l.unsupported(i)
			}
			return nil
		}
	}
	return fmt.Errorf("%s has no function %q", l.config.Title, name)
}

// Identity describes the library's file: its path, size and modification time. It changes when the library is updated.
func (l *Library) Identity() string {
	file := l.File()
	info, err := os.Stat(file)
	if err != nil {
		return file
	}
	return fmt.Sprint(file, " ", info.Size(), " ", info.ModTime().UnixNano())
}

// Code is the type of the result codes of one library.
type Code interface {
	~int32
	// String returns the vendor's name.
	String() string
	// Text describes the code in a few words.
	Text() string
}

// Error is a result code as an error. Errors with the same code are equal.
type Error[C Code] struct {
	// Result is the library's code, never success.
	Result C
}

// Error returns the code's name, number and meaning.
func (e Error[C]) Error() string {
	s := e.Result.String()
	if t := e.Result.Text(); t != "" {
		s += " (" + strconv.Itoa(int(e.Result)) + "): " + t
	}
	return s
}

// Is makes the error match [errors.ErrUnsupported] if the code has a method Unsupported that returns true.
func (e Error[C]) Is(target error) bool {
	u, ok := any(e.Result).(interface{ Unsupported() bool })
	return ok && target == errors.ErrUnsupported && u.Unsupported()
}

// Err returns a code as an error: nil for 0, an [*UnsupportedError] if the function was not called, and otherwise an [Error].
func Err[C Code](l *Library, code C) error {
	if code == 0 {
		return nil
	}
	if err := l.MissingError(int32(code)); err != nil {
		return err
	}
	return Error[C]{Result: code}
}

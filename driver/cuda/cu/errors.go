package cu

import (
	"errors"
	"strconv"

	"github.com/sharedtensor/sharedtensor/driver/cuda/internal/dl"
)

// ErrNoLibrary means that the driver's library is missing: there is no NVIDIA driver on the host, the dynamic linker
// cannot find it, or this build has no support for it.
var ErrNoLibrary = errors.New("no CUDA driver library")

// Error is a driver's result code as an error. Errors with the same code are equal, so errors.Is(err,
// cu.ERROR_OUT_OF_MEMORY.Err()) works.
type Error struct {
	// Result is the driver's code, never [SUCCESS].
	Result Result
}

// Error returns the code's name, number and meaning.
func (e Error) Error() string {
	s := e.Result.String()
	if t := e.Result.Text(); t != "" {
		s += " (" + strconv.Itoa(int(e.Result)) + "): " + t
	}
	return s
}

// Is makes CUDA_ERROR_NOT_SUPPORTED match [errors.ErrUnsupported].
func (e Error) Is(target error) bool {
	return target == errors.ErrUnsupported && e.Result == ERROR_NOT_SUPPORTED
}

// Version is a CUDA version in the driver's format: 1000 times the major plus 10 times the minor number.
type Version = dl.Version

// UnsupportedError describes a function that could not be called, with the fields Function, Symbol, Since, Library and Err. It
// matches [errors.ErrUnsupported] with errors.Is, and also [ErrNoLibrary] if that is the cause.
type UnsupportedError = dl.UnsupportedError

// LibraryError means that the driver's library was not found or cannot be loaded, with the fields Tried, Found and Err. It
// matches [ErrNoLibrary] and [errors.ErrUnsupported] with errors.Is.
type LibraryError = dl.LibraryError

// driverLibrary describes the driver's library. Its default places are its name for the dynamic linker, the name in
// development packages, and the directory that WSL mounts.
var driverLibrary = dl.Config{
	Title: "CUDA driver", Env: "SHAREDTENSOR_LIBCUDA", NoLibrary: ErrNoLibrary,
	Names: []string{"libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"},
}

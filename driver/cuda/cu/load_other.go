//go:build !linux || (!amd64 && !arm64) || nocuda

package cu

import "github.com/sharedtensor/sharedtensor/driver/cuda/internal/dl"

// noBuild returns the error of a build without CUDA.
func noBuild() error {
	_, _, err := dl.Open(&driverLibrary, "")
	return err
}

// Load opens the driver's library. In this build it always returns a [*LibraryError].
func Load(path string) error { return noBuild() }

// Path returns the name under which the library was opened. In this build it is always empty.
func Path() string { return "" }

// UsePerThreadDefaultStream selects per-thread default streams. In this build it always returns a [*LibraryError].
func UsePerThreadDefaultStream() error { return noBuild() }

func address(f function) (uintptr, Result) { return 0, missingResult(f) }

func callFloat(f function, a0, a1 uintptr, x0, x1 float32) Result { return missingResult(f) }

func unsupported(f function) error {
	e := &table[f]
	return &UnsupportedError{Function: e.name, Symbol: e.symbol, Since: e.since, Err: noBuild()}
}

// NewCallback returns a C function that calls fn. In this build it always returns a [*LibraryError].
func NewCallback(fn any) (callback uintptr, err error) { return 0, noBuild() }

func procAddressFlags(flags DriverProcAddress_flags) DriverProcAddress_flags { return flags }

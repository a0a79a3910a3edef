// Package result has functions of package cu in Go's form: what the C function stores through its pointers is returned, and a
// failure is an error with the name of the function.
//
//	ptr, err := result.MemAlloc(dev.Context(), 4096)
//	free, total, err := result.MemGetInfo(dev.Context())
//
// Functions that use the current context have it as their first parameter. They set it, call, and restore the previous one in
// one crossing. Functions without results have no form here: c.MemFree(ptr).Err() is as short. Functions with arrays, or with
// variables that the caller sets before, have none either.
//
// Each result is allocated on the heap, because C stores it by its address. Package cu has the same functions without
// allocations, and package cuda has types that release their resources.
package result

import "github.com/sharedtensor/sharedtensor/driver/cuda/cu"

// Error is a function of the driver that failed.
type Error struct {
	// Function is the C name, such as cuMemAlloc.
	Function string
	// Result is the driver's code, never success.
	Result cu.Result
}

// Error returns the function, and the code's name, number and meaning.
func (e *Error) Error() string { return e.Function + ": " + e.Unwrap().Error() }

// Unwrap returns the code as an error of package cu.
func (e *Error) Unwrap() error { return cu.Error{Result: e.Result} }

// check returns nil for success, and a [*cu.UnsupportedError] if the driver lacks the function.
func check(name string, r cu.Result) error {
	if r == cu.SUCCESS {
		return nil
	}
	if r.Missing() {
		return r.Err()
	}
	return &Error{Function: name, Result: r}
}

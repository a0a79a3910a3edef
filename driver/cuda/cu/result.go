package cu

import "strconv"

// firstMissing is where this package's own codes start: below it, a code says which function could not be called. The
// driver's codes are 0 and above.
const firstMissing Result = -1 << 16

// resultName is what is known of a code without a driver.
type resultName struct{ name, text string }

// OK reports whether the call succeeded.
func (r Result) OK() bool { return r == SUCCESS }

// String is the vendor's name of the code, such as CUDA_ERROR_OUT_OF_MEMORY. A code that cuda.h does not have is given
// as a number.
func (r Result) String() string {
	if f, ok := r.missing(); ok {
		return table[f].name + " is missing"
	}
	if n, ok := resultNames[r]; ok {
		return n.name
	}
	return "CUresult(" + strconv.Itoa(int(r)) + ")"
}

// Text says in a few words what the code means; it is empty for a code that cuda.h does not have.
func (r Result) Text() string { return resultNames[r].text }

// Err is nil for [SUCCESS], an [*UnsupportedError] where the function was not called because the library or the
// function is missing, and an [Error] for everything that the driver answered. Success does not allocate.
func (r Result) Err() error {
	if r == SUCCESS {
		return nil
	}
	if f, ok := r.missing(); ok {
		return unsupported(f)
	}
	return Error{Result: r}
}

// Missing reports whether the code is this package's own: the function was not called, because there is no library or
// the library does not have the function. [Result.Err] says which.
func (r Result) Missing() bool {
	_, ok := r.missing()
	return ok
}

func (r Result) missing() (function, bool) {
	if f := int(firstMissing) - int(r); f >= 0 && f < int(functionCount) {
		return function(f), true
	}
	return 0, false
}

// missingResult is the code that says that f could not be called.
func missingResult(f function) Result { return firstMissing - Result(f) }

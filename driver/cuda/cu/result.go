package cu

import "strconv"

// firstMissing is the first code of this package. It and the codes below it identify a function that could not be
// called. The driver's codes are 0 and above.
const firstMissing Result = -1 << 16

// resultName describes a code, for use without a driver.
type resultName struct{ name, text string }

// OK reports whether the call succeeded.
func (r Result) OK() bool { return r == SUCCESS }

// String returns the vendor's name of the code, such as CUDA_ERROR_OUT_OF_MEMORY. A code that cuda.h does not define is
// formatted as a number.
func (r Result) String() string {
	if f, ok := r.missing(); ok {
		return table[f].name + " is missing"
	}
	if n, ok := resultNames[r]; ok {
		return n.name
	}
	return "CUresult(" + strconv.Itoa(int(r)) + ")"
}

// Text describes the code in a few words. It is empty for a code that cuda.h does not define.
func (r Result) Text() string { return resultNames[r].text }

// Err returns nil for [SUCCESS], an [*UnsupportedError] if the function was not called because the library or the
// function is missing, and an [Error] for other codes of the driver. Success does not allocate.
func (r Result) Err() error {
	if r == SUCCESS {
		return nil
	}
	if f, ok := r.missing(); ok {
		return unsupported(f)
	}
	return Error{Result: r}
}

// Missing reports whether the function was not called, because the library is missing or lacks the function.
// [Result.Err] returns the details.
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

// missingResult returns the code that means that f could not be called.
func missingResult(f function) Result { return firstMissing - Result(f) }

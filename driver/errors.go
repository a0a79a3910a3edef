package driver

import "errors"

// Errors that devices return, wrapped with the operation and the device. Closed things return [os.ErrClosed].
var (
	// ErrInvalid is an argument that makes no sense on any device.
	ErrInvalid = errors.New("invalid argument")
	// ErrOutOfMemory is memory that the system refused.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrHandle is a handle that does not hold: wrong size, wrong device, not sealed, not what its kind says.
	ErrHandle = errors.New("handle refused")
	// ErrRange is an access outside the memory.
	ErrRange = errors.New("outside the memory")
	// ErrReadOnly is a write to memory that is mapped read-only, or a writable mapping of frozen memory.
	ErrReadOnly = errors.New("memory is read-only")
	// ErrBusy is memory that cannot be sealed because something is writing it, or could.
	ErrBusy = errors.New("memory is being written")
)

// OpError says what was tried on which device. It unwraps to the cause.
type OpError struct {
	// Op is the operation, such as "alloc" or "import".
	Op string
	// Device is the device's short name, such as "cuda:0".
	Device string
	// Err is the cause.
	Err error
}

// Error is one sentence naming the device and the operation.
func (e *OpError) Error() string { return e.Device + ": " + e.Op + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// UnsupportedError is a feature that this host, driver or build does not have. It answers errors.Is for
// [errors.ErrUnsupported].
type UnsupportedError struct {
	// Feature is what was asked for, as the subject of a sentence: "handle kind cuda-fd on cuda:0".
	Feature string
	// Reason says why it cannot be had here, as a clause: "there is no CUDA device". It may be empty.
	Reason string
	// Requires is what it needs, as the object of a sentence: "Linux 5.1 or newer". It may be empty.
	Requires string
}

// Error is one sentence: the feature, why it cannot be had and what it needs.
func (e *UnsupportedError) Error() string {
	text := e.Feature + " is not supported"
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	switch {
	case e.Requires == "":
	case e.Reason == "":
		text += ": it needs " + e.Requires
	default:
		text += "; it needs " + e.Requires
	}
	return text
}

// Is makes the error answer for [errors.ErrUnsupported].
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

package driver

import "errors"

// Errors of devices, wrapped with the operation and the device. Closed objects return [os.ErrClosed].
var (
	// ErrInvalid means that an argument is invalid on every device.
	ErrInvalid = errors.New("invalid argument")
	// ErrOutOfMemory means that the system refused memory.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrHandle means that a handle is invalid: wrong size, wrong device, unsealed, or of another kind than it claims.
	ErrHandle = errors.New("handle refused")
	// ErrRange means an access outside the memory.
	ErrRange = errors.New("outside the memory")
	// ErrReadOnly means a write to memory that is mapped read-only, or a writable mapping of frozen memory.
	ErrReadOnly = errors.New("memory is read-only")
	// ErrBusy means that memory cannot be sealed because it is or may be written.
	ErrBusy = errors.New("memory is being written")
)

// OpError is a failed operation on a device. It unwraps to the cause.
type OpError struct {
	// Op is the operation, such as "alloc" or "import".
	Op string
	// Device is the device's short name, such as "cuda:0".
	Device string
	// Err is the cause.
	Err error
}

// Error returns the device, the operation and the cause.
func (e *OpError) Error() string { return e.Device + ": " + e.Op + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// UnsupportedError is a feature that this host, driver or build does not support. It matches errors.Is for
// [errors.ErrUnsupported].
type UnsupportedError struct {
	// Feature is the feature, as the subject of a sentence: "handle kind cuda-fd on cuda:0".
	Feature string
	// Reason is why it is not supported, as a clause: "there is no CUDA device". It may be empty.
	Reason string
	// Requires is the requirement, as the object of a sentence: "Linux 5.1 or newer". It may be empty.
	Requires string
}

// Error returns one sentence: the feature, the reason and the requirement.
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

// Is reports whether target is [errors.ErrUnsupported].
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

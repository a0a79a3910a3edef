package cuda

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Errors that an [*Error] matches with errors.Is, in addition to [driver.ErrOutOfMemory], [driver.ErrInvalid] and
// [errors.ErrUnsupported].
var (
	// ErrContext means that the context of a call does not exist, was destroyed, or has another owner.
	ErrContext = errors.New("invalid CUDA context")
	// ErrCapturing means that the driver does not allow the call while a stream captures.
	ErrCapturing = errors.New("a stream of the device is being captured")
	// ErrPeerGone means that the owner of a handle has exited or has freed the object.
	ErrPeerGone = errors.New("the owner of the handle is gone")
	// ErrFault means a fault on the device, such as a write to read-only memory, or of a part it depends on (memory,
	// NVLink, the MPS server). The context is lost: all further calls in it fail, and the process must be restarted to
	// use the device.
	ErrFault = errors.New("fault on the CUDA device")
)

// Error is a driver call that failed.
type Error struct {
	// Func is the C function, such as cuMemCreate.
	Func string
	// Code is the driver's result, never success.
	Code cu.Result
}

// Error returns the function, the name and number of the code, and its meaning.
func (e *Error) Error() string { return e.Func + ": " + cu.Error{Result: e.Code}.Error() }

// Name returns the vendor's name of the code, such as CUDA_ERROR_OUT_OF_MEMORY.
func (e *Error) Name() string { return e.Code.String() }

// Text describes the code in a few words.
func (e *Error) Text() string { return e.Code.Text() }

// Unwrap returns the code as an error of package cu.
func (e *Error) Unwrap() error { return cu.Error{Result: e.Code} }

// classes maps codes to the errors they match.
var classes = map[cu.Result]error{
	cu.ERROR_OUT_OF_MEMORY:              driver.ErrOutOfMemory,
	cu.ERROR_INVALID_VALUE:              driver.ErrInvalid,
	cu.ERROR_INVALID_CONTEXT:            ErrContext,
	cu.ERROR_CONTEXT_IS_DESTROYED:       ErrContext,
	cu.ERROR_NOT_SUPPORTED:              errors.ErrUnsupported,
	cu.ERROR_CALL_REQUIRES_NEWER_DRIVER: errors.ErrUnsupported,
	cu.ERROR_PEER_ACCESS_UNSUPPORTED:    errors.ErrUnsupported,
	cu.ERROR_ILLEGAL_ADDRESS:            ErrFault,
	cu.ERROR_LAUNCH_FAILED:              ErrFault,
	cu.ERROR_MISALIGNED_ADDRESS:         ErrFault,
	cu.ERROR_INVALID_ADDRESS_SPACE:      ErrFault,
	cu.ERROR_INVALID_PC:                 ErrFault,
	cu.ERROR_ILLEGAL_INSTRUCTION:        ErrFault,
	cu.ERROR_HARDWARE_STACK_ERROR:       ErrFault,
	cu.ERROR_ASSERT:                     ErrFault,
	cu.ERROR_LAUNCH_TIMEOUT:             ErrFault,
	cu.ERROR_ECC_UNCORRECTABLE:          ErrFault,
	cu.ERROR_NVLINK_UNCORRECTABLE:       ErrFault,
	cu.ERROR_CONTAINED:                  ErrFault,
	cu.ERROR_TENSOR_MEMORY_LEAK:         ErrFault,
	cu.ERROR_MPS_CLIENT_TERMINATED:      ErrFault,
	cu.ERROR_EXTERNAL_DEVICE:            ErrFault,
	cu.ERROR_STUB_LIBRARY:               errors.ErrUnsupported,
	cu.ERROR_STREAM_CAPTURE_UNSUPPORTED: ErrCapturing,
	cu.ERROR_STREAM_CAPTURE_IMPLICIT:    ErrCapturing,
	cu.ERROR_CAPTURED_EVENT:             ErrCapturing,
}

// Is reports whether the code means target, an error of this package or of package driver.
func (e *Error) Is(target error) bool {
	if class, ok := classes[e.Code]; ok && class == target {
		return true
	}
	return target == ErrPeerGone && e.peerGone()
}

// peerGone reports whether the code means that a handle that was valid is no longer.
func (e *Error) peerGone() bool {
	switch e.Func {
	case "cuIpcOpenMemHandle", "cuIpcOpenEventHandle":
		return e.Code == cu.ERROR_INVALID_HANDLE || e.Code == cu.ERROR_MAP_FAILED
	}
	return false
}

// check returns nil for success. It returns a [*driver.UnsupportedError] if the driver is missing or lacks the
// function.
func check(fn string, r cu.Result) error {
	switch {
	case r == cu.SUCCESS:
		return nil
	case r.Missing():
		return missing(fn, r.Err())
	}
	return &Error{Func: fn, Code: r}
}

func missing(fn string, err error) error {
	if errors.Is(err, cu.ErrNoLibrary) {
		return &driver.UnsupportedError{Feature: "CUDA", Reason: err.Error()}
	}
	return &driver.UnsupportedError{Feature: fn, Reason: err.Error()}
}

// opError adds the device and the operation to an error.
func (d *Device) opError(op string, err error) error {
	if err == nil {
		return nil
	}
	return &driver.OpError{Op: op, Device: d.info.String(), Err: err}
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", driver.ErrInvalid, fmt.Sprintf(format, args...))
}

// joinErrors returns a single error as it is, and joins several.
func joinErrors(errs []error) error {
	var found []error
	for _, e := range errs {
		if e != nil {
			found = append(found, e)
		}
	}
	if len(found) == 1 {
		return found[0]
	}
	return errors.Join(found...)
}

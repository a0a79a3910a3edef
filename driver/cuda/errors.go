package cuda

import (
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Errors that an [*Error] answers to with errors.Is, besides [driver.ErrOutOfMemory], [driver.ErrInvalid] and
// [errors.ErrUnsupported].
var (
	// ErrContext is a call in a context that does not exist, was destroyed, or belongs to somebody else.
	ErrContext = errors.New("invalid CUDA context")
	// ErrPeerGone is a handle whose owner is gone or has freed what it named.
	ErrPeerGone = errors.New("the owner of the handle is gone")
	// ErrFault is a fault on the device, such as a write to read-only memory, or of what it depends on (memory, NVLink,
	// the MPS server). The context is lost: every call in it fails from then on, and the process has to start again to
	// use the device.
	ErrFault = errors.New("fault on the CUDA device")
)

// Error is what the driver answered to one call.
type Error struct {
	// Func is the function in C, such as cuMemCreate.
	Func string
	// Code is the driver's answer; never success.
	Code cu.Result
}

// Error is the function, the code's name and number, and what it means.
func (e *Error) Error() string { return e.Func + ": " + cu.Error{Result: e.Code}.Error() }

// Name is the vendor's name of the code, such as CUDA_ERROR_OUT_OF_MEMORY.
func (e *Error) Name() string { return e.Code.String() }

// Text says in a few words what the code means.
func (e *Error) Text() string { return e.Code.Text() }

// Unwrap returns the code as an error of package cu.
func (e *Error) Unwrap() error { return cu.Error{Result: e.Code} }

// classes are the errors that codes answer to.
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
}

// Is answers for the errors of this package and of package driver that the code means.
func (e *Error) Is(target error) bool {
	if class, ok := classes[e.Code]; ok && class == target {
		return true
	}
	return target == ErrPeerGone && e.peerGone()
}

// peerGone: a handle that was good once names nothing any more.
func (e *Error) peerGone() bool {
	switch e.Func {
	case "cuIpcOpenMemHandle", "cuIpcOpenEventHandle":
		return e.Code == cu.ERROR_INVALID_HANDLE || e.Code == cu.ERROR_MAP_FAILED
	}
	return false
}

// check is nil for success. A function that the driver does not have, or a driver that is not there, is a
// [*driver.UnsupportedError].
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

// opError says on which device what was tried.
func (d *Device) opError(op string, err error) error {
	if err == nil {
		return nil
	}
	return &driver.OpError{Op: op, Device: d.info.String(), Err: err}
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", driver.ErrInvalid, fmt.Sprintf(format, args...))
}

// joinErrors is the one error there is, or all of them together.
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

package cuda

import (
	"errors"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// errNotReleased marks an error after which the resource still exists. Close can be called again.
type errNotReleased struct {
	error
	// begun is set if the driver was called to release a part of the resource. The object is then unusable.
	begun bool
}

func (e errNotReleased) Unwrap() error { return e.error }

// mustRetry reports whether the resource still exists after a release that failed with err.
func mustRetry(err error) bool { return errors.As(err, &errNotReleased{}) }

// notReleased marks the error of a step before the release, except ErrCapturing.
func notReleased(err error) error {
	if errors.Is(err, ErrCapturing) {
		return ErrCapturing
	}
	return errNotReleased{error: err}
}

// freed returns the error of a call that releases a resource, with errNotReleased if the resource still exists.
func freed(fn string, r cu.Result) error {
	err := check(fn, r)
	if err == nil || r.Missing() || gone(err) {
		return err
	}
	return errNotReleased{error: err, begun: true}
}

// gone reports whether the driver's error means that the resource, or the context that contains it, does not exist.
func gone(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case cu.ERROR_INVALID_VALUE, cu.ERROR_INVALID_HANDLE, cu.ERROR_NOT_FOUND, cu.ERROR_NOT_MAPPED, cu.ERROR_HOST_MEMORY_NOT_REGISTERED,
		cu.ERROR_INVALID_CONTEXT, cu.ERROR_CONTEXT_IS_DESTROYED, cu.ERROR_DEINITIALIZED:
		return true
	}
	return errors.Is(err, ErrFault)
}

// freeNow releases something that no object owns. It calls free again if that fails, because no later call would.
func freeNow(fn string, free func() cu.Result) error {
	err := freed(fn, free())
	if mustRetry(err) {
		err = freed(fn, free())
	}
	return err
}

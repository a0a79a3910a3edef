package tensor

import (
	"errors"
	"strconv"
)

// Errors of this package, wrapped with what was wrong. Closed tensors and storages return [os.ErrClosed]; memory that
// cannot do what was asked, such as typed access on a GPU, returns a [driver.UnsupportedError].
var (
	// ErrDType is a data type that is not known, or not the one that the call needs.
	ErrDType = errors.New("wrong data type")
	// ErrShape is a shape or strides that cannot be: negative, too many dimensions, not the shape that the call needs.
	ErrShape = errors.New("wrong shape")
	// ErrOverflow is a size that does not fit 63 bits.
	ErrOverflow = errors.New("size overflows")
	// ErrBounds is a tensor that reaches outside its storage.
	ErrBounds = errors.New("outside the storage")
	// ErrIndex is a dimension or an index outside the tensor.
	ErrIndex = errors.New("index out of range")
	// ErrNotView is a view that strides cannot express. Copy makes a tensor from which it can be had.
	ErrNotView = errors.New("cannot be a view")
	// ErrNotContiguous is a strided tensor where a row-major one is needed.
	ErrNotContiguous = errors.New("not contiguous")
	// ErrAlignment is an address that Go cannot use for the type asked for.
	ErrAlignment = errors.New("not aligned")
)

// ViewsError says which of many tensors was refused by [PlanViews].
type ViewsError struct {
	// Index is the position of the refused tensor.
	Index int
	// Err is the cause.
	Err error
}

// Error names the position and the cause.
func (e *ViewsError) Error() string { return "tensor " + strconv.Itoa(e.Index) + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ViewsError) Unwrap() error { return e.Err }

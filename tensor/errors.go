package tensor

import "errors"

// Errors of this package, wrapped with details. Closed tensors and storages return [os.ErrClosed]. Memory without the
// requested capability, such as typed access on a GPU, returns a [driver.UnsupportedError].
var (
	// ErrDType means that the data type is unknown or not the required one.
	ErrDType = errors.New("wrong data type")
	// ErrShape means that a shape or strides are invalid: negative, too many dimensions, or not the required shape.
	ErrShape = errors.New("wrong shape")
	// ErrOverflow means that a size does not fit 63 bits.
	ErrOverflow = errors.New("size overflows")
	// ErrBounds means that a tensor reaches outside its storage.
	ErrBounds = errors.New("outside the storage")
	// ErrIndex means that a dimension or an index is outside the tensor.
	ErrIndex = errors.New("index out of range")
	// ErrNotView means that strides cannot express the view. The view of a Copy can be made.
	ErrNotView = errors.New("cannot be a view")
	// ErrNotContiguous means that a row-major tensor is required.
	ErrNotContiguous = errors.New("not contiguous")
	// ErrAlignment means that Go cannot use the address for the requested type.
	ErrAlignment = errors.New("not aligned")
)

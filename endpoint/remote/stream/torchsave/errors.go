package torchsave

import "errors"

// Errors of this package, wrapped with what was wrong.
var (
	// ErrFormat is a file that torch.save did not write, or that is damaged.
	ErrFormat = errors.New("not a file of torch.save")
	// ErrRefused is a file with more than plain tensors: a function or an instruction that this package has no use for.
	// Nothing was executed.
	ErrRefused = errors.New("more than plain tensors")
	// ErrLimit is a file beyond one of the Limits.
	ErrLimit = errors.New("limit reached")
)

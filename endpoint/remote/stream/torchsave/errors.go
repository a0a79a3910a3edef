package torchsave

import "errors"

// Errors of this package, wrapped with details.
var (
	// ErrFormat reports a file that is damaged or not from torch.save.
	ErrFormat = errors.New("not a file of torch.save")
	// ErrRefused reports a file with more than plain tensors: it uses an unsupported function or instruction. Nothing
	// was executed.
	ErrRefused = errors.New("more than plain tensors")
	// ErrLimit reports a file over one of the Limits.
	ErrLimit = errors.New("limit reached")
)

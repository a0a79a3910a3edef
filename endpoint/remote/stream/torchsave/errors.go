package torchsave

import (
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
)

// Errors of this package, wrapped with details.
var (
	// ErrFormat reports a file that is damaged or not from torch.save.
	ErrFormat = admission.NewError(admission.Invalid, "not a file of torch.save")
	// ErrRefused reports a file with more than plain tensors: it uses an unsupported function or instruction. Nothing
	// was executed.
	ErrRefused = admission.NewError(admission.Invalid, "more than plain tensors")
	// ErrLimit reports a file over one of the Limits.
	ErrLimit = admission.NewError(admission.Limit, "limit reached")
)

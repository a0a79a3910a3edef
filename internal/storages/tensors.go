// Package storages contains the parts of package tensor that only this module uses: tensors that a state dict owns, and
// storages whose memory another process lent.
package storages

import (
	"github.com/sharedtensor/sharedtensor/internal/storages/hook"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// View returns a kept tensor over s, see [Keep]. The caller has validated spec for the size of s. The slices of spec are
// borrowed and must not change. The tensor is closed if s is.
func View(s *tensor.Storage, spec *tensor.Spec) *tensor.Tensor {
	return hook.View(s, spec).(*tensor.Tensor)
}

// Keep makes Close of t have no effect, so that users of a state dict cannot close its tensors. If t is a view, Keep returns
// a kept alias of it instead of t, because a view lives only as long as its parent. The caller owns the result and ends
// it with [End].
func Keep(t *tensor.Tensor) *tensor.Tensor {
	if hook.IsView(t) {
		t = t.Alias()
	}
	hook.Keep(t)
	return t
}

// Own reverses [Keep] and returns t.
func Own(t *tensor.Tensor) *tensor.Tensor {
	hook.Own(t)
	return t
}

// End closes a kept tensor.
func End(t *tensor.Tensor) error { return hook.End(t) }

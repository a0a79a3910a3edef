package tensor

import "github.com/sharedtensor/sharedtensor/internal/storages/hook"

func init() {
	hook.View = func(storage, spec any) any {
		t := new(Tensor)
		// The caller has validated the spec.
		_ = t.init(storage.(*Storage), spec.(*Spec))
		t.kept.Store(true)
		t.closed.Store(!t.storage.retain(1))
		return t
	}
	hook.Keep = func(t any) { t.(*Tensor).kept.Store(true) }
	hook.Own = func(t any) { t.(*Tensor).kept.Store(false) }
	hook.End = func(t any) error { return t.(*Tensor).end() }
	hook.IsView = func(t any) bool { return t.(*Tensor).parent != nil }
}

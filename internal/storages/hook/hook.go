// Package hook holds the functions that package tensor provides to package storages. They pass tensors and storages as any,
// because package tensor imports this package. Other packages use storages.
package hook

// The functions are set when package tensor is initialized.
var (
	// View creates a tensor over a storage from a valid spec. Close of the tensor has no effect.
	View func(storage, spec any) (tensor any)
	// Keep makes Close of a tensor have no effect.
	Keep func(tensor any)
	// Own reverses Keep.
	Own func(tensor any)
	// End closes a tensor in any case.
	End func(tensor any) error
	// IsView reports whether a tensor has no reference to its storage.
	IsView func(tensor any) bool
)

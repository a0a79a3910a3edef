// Package module handles state dicts: the named tensors of a neural module. It has nothing to do with Go modules.
//
// A [StateDict] holds tensors under their names, a [Manifest] describes one as a plain value that can be sent to
// another process, and [FromManifest] puts the two together again over storages that were mapped there. [Load] fills
// device memory from a safetensors model, all tensors in one slab that a [Layout] plans; [Save] writes one back.
//
// Tied tensors are names that mean the same elements of the same storage. They are stored once in memory and on disk; a
// file records them in its metadata ([safetensors.TiedKey]).
//
// What surprises: a state dict made by FromManifest shares the manifest's slices and strings, and closing a tensor that
// was borrowed from a state dict closes it for every user of that state dict. A storage goes when its last tensor is
// closed.
package module

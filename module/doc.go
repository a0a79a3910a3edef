// Package module handles state dicts: the named tensors of a neural module. It is unrelated to Go modules.
//
// A [StateDict] holds tensors under their names. A [Manifest] describes one as a plain value that can be sent to
// another process, and [FromManifest] combines it with storages that were mapped there. [Load] fills device memory from
// a safetensors model, with all tensors in one slab that a [Layout] plans. [Save] writes a model back.
//
// Tied tensors are names for the same elements of the same storage. They are stored once in memory and on disk; a file
// records them in its metadata ([safetensors.TiedKey]).
//
// Surprises: a state dict made by FromManifest shares the manifest's slices and strings. Closing a tensor borrowed from
// a state dict closes it for every user of that state dict. A storage is closed with its last tensor.
package module

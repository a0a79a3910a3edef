// Package safetensors reads and writes the safetensors file format, for one file and for models sharded over several.
//
// A file is an 8-byte little-endian length, a JSON header of that length, and the tensors' bytes. The header begins
// with '{' and may be padded with spaces at its end. It maps each tensor's name to its dtype, its shape and the
// half-open range of its bytes, counted from the end of the header. The key __metadata__ maps strings to strings.
// Elements are little-endian and row-major. The README of github.com/huggingface/safetensors describes the format.
//
// A [Header] is a pure value: [ReadHeader] reads one from a file, [NewHeader] builds one from a list of tensors, and
// both apply the same rules. The tensors cover the data section without holes or overlaps, the last one ends at the end
// of the file, names are unique, and shape times dtype is the length of each range. Each rule has its own error.
//
// Surprises: the reader is stricter than most. It refuses duplicate names (a JSON library would keep the last), headers
// that begin with white space, unknown keys, and bytes after the last tensor, so a file contains only what its header
// describes.
package safetensors

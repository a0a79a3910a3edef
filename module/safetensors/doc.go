// Package safetensors reads and writes the safetensors file format, for one file and for models sharded over several.
//
// A file is an 8-byte little-endian length, a JSON header of that length, and the tensors' bytes. The header begins
// with '{' and may be padded with spaces at its end. It maps each tensor's name to its dtype, its shape and the
// half-open range of its bytes, counted from the end of the header; the key __metadata__ maps strings to strings.
// Elements are little-endian and row-major. The format's description is the README of
// github.com/huggingface/safetensors.
//
// A [Header] is a pure value: [ReadHeader] makes one from a file, [NewHeader] from a list of tensors, and both are held
// to the same rules. The tensors cover the data section without holes or overlaps, the last one ends where the file
// ends, names are unique, and shape times dtype is the length of each range. Every broken rule has an error of its own.
//
// What surprises: the reader is stricter than most. It refuses a name that occurs twice (a JSON library would keep the
// last), a header that begins with white space, and keys that the format does not have. Bytes after the last tensor are
// an error too, so a file cannot carry what its header does not name.
package safetensors

// Package delta writes how the bytes of a tensor differ from those of an earlier version, and applies that.
//
// A training step of bfloat16 changes a few percent of the elements, spread over nearly all tensors, by so little that
// each is another value, not a small difference. So what is written is absolute: positions and values. A tensor is cut
// into segments, and each is written in the way that takes the fewest bytes:
//
//	same     nothing
//	sparse   the distances between the elements that changed, and their values
//	blocks   the distances between the 512-byte blocks that changed, and their bytes
//	whole    all bytes
//
// and compressed with zstd where that saves something. The form of a segment is one byte (its kind, and bit 7 where it
// is compressed), the length of what follows as a varint unless the kind is same, and that.
//
// What is read is checked: positions lie in the segment, lengths agree, and nothing is larger than its segment allows.
// Whether the outcome is right is for the caller to find out, by its digest.
package delta

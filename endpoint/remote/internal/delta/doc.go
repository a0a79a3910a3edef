// Package delta encodes the difference between two versions of a tensor's bytes, and applies it.
//
// A training step of bfloat16 changes a few percent of the elements, spread over nearly all tensors. A delta stores the
// positions and new values of these elements, not arithmetic differences. A tensor is divided into segments, and each
// is encoded in the form that needs the fewest bytes:
//
//	same     nothing
//	sparse   the distances between the elements that changed, and their values
//	blocks   the distances between the 512-byte blocks that changed, and their bytes
//	whole    all bytes
//
// A segment is compressed with zstd if that saves space. It is encoded as one byte (its kind, with bit 7 set if it is
// compressed), and, unless the kind is same, the length of the payload as a varint and the payload.
//
// Decoding validates its input: positions are within the segment, lengths agree, and no payload is larger than its
// segment allows. The caller verifies the result by its digest.
package delta

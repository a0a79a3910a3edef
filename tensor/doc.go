// Package tensor describes arrays of numbers in memory that may be shared with other processes, and reads and writes
// them in place.
//
// A [Spec] is a plain value: data type, shape, strides and byte offset. A [Storage] is a counted reference to one
// [driver.Memory]. A [Tensor] is a Spec that was validated against a Storage, with a reference to it. Views (Narrow,
// Select, Transpose, Reshape, View and so on) are new tensors over the same storage. Nothing is copied unless a
// function's name contains Copy. The memory is closed with the last tensor or reference.
//
// The caller owns every tensor returned by a constructor or a view and must close it.
//
// Surprises:
//   - Strides count elements, offsets count bytes. Any byte offset is valid, because safetensors files are not aligned.
//     Only [Data], which returns Go slices, requires alignment.
//   - Data types under a byte (Float4E2M1FN, Float6E2M3FN, Float6E3M2FN) are packed with the lowest bits first, as in
//     DLPack. Views of them must begin on a byte.
//   - Bytes are little-endian, in memory and in files.
//   - Zeros returns zeroed elements, Empty elements that the caller must write.
//   - Alias returns another reference to the same bytes. Copy creates new ones.
package tensor

// Package tensor describes arrays of numbers in memory that others may share, and reads and writes them there.
//
// A [Spec] is a plain value: data type, shape, strides and byte offset. A [Storage] is a counted reference to one
// [driver.Memory]. A [Tensor] is a Spec that was checked against a Storage and holds a reference to it. Views (Narrow,
// Select, Transpose, Reshape, View and so on) are new tensors over the same storage; nothing is copied unless a
// function's name says copy. The memory is closed when the last tensor or reference is.
//
// Every tensor is owned by whoever got it from a constructor or a view and has to be closed, views too.
//
// What surprises:
//   - Strides count elements, the offset counts bytes. Any byte offset is valid: files of the safetensors format align
//     nothing. Only [Data], which hands out Go slices, insists on alignment.
//   - Data types under a byte (Float4E2M1FN, Float6E2M3FN, Float6E3M2FN) are packed with the lowest bits first, as DLPack
//     says. A view of them has to begin on a byte.
//   - Bytes are little-endian, on the host and in files.
//   - Clone is another reference to the same bytes. Copy makes new ones.
package tensor

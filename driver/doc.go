// Package driver says what a memory device can do: hold bytes, and let another process use them in place.
//
// A [Device] allocates [Memory]; a Memory is exported as a [Handle]; another process imports the handle on its own
// Device and gets a Memory over the same bytes. The package holds the vocabulary only: real devices are in driver/host
// (sealed shared memory) and driver/cuda (the CUDA driver), and driver/drivertest is the suite that all of them pass.
//
// Ownership is said with three verbs everywhere in this module. A function that borrows a value leaves it with the
// caller, who still closes it. One that takes a value closes it, also when it fails. One that returns a value owned
// leaves closing it to the caller.
//
// What surprises: memory belongs to whoever maps it. Closing the exporter's Memory, or killing the exporting process,
// does not take the bytes away from a process that has imported them (handle kinds memfd and cuda-fd).
package driver

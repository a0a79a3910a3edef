// Package driver defines memory devices, which hold bytes and let other processes use them in place.
//
// A [Device] allocates [Memory]. A Memory is exported as a [Handle]. Another process imports the handle on its own
// Device and gets a Memory over the same bytes. This package only has the vocabulary: devices are in driver/host
// (sealed shared memory) and driver/cuda (the CUDA driver), and driver/drivertest is their conformance suite.
//
// Three verbs describe ownership everywhere in this module. A function that borrows a value leaves closing it to the
// caller. One that takes a value closes it, even on failure. One that returns a value owned leaves closing it to the
// caller.
//
// A surprise: memory belongs to the processes that map it. Closing the exporter's Memory, or killing the exporting
// process, does not affect processes that have imported it (handle kinds memfd and cuda-fd).
package driver

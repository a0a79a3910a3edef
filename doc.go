// Package sharedtensor has no code. It describes the packages of the module, in the order in which a program needs them.
//
//   - [github.com/sharedtensor/sharedtensor/endpoint]: owners that publish models and functions, and clients that use them.
//   - [github.com/sharedtensor/sharedtensor/module]: state dicts, and loading them from files.
//   - [github.com/sharedtensor/sharedtensor/tensor]: tensors in memory that processes share.
//   - [github.com/sharedtensor/sharedtensor/driver/host], [github.com/sharedtensor/sharedtensor/driver/cuda]: devices. The
//     second also is a binding of the CUDA driver that needs nothing else of the module.
//   - [github.com/sharedtensor/sharedtensor/endpoint/keeper]: models that survive their owner.
//   - [github.com/sharedtensor/sharedtensor/endpoint/endpointtest]: owners and clients for tests of programs.
//   - [github.com/sharedtensor/sharedtensor/wire]: the protocol, with PROTOCOL.md for other languages.
//
// The command is in cmd/sharedtensor. A first program is in examples/first, the guide in docs/guide.md.
package sharedtensor

// Package endpoint lets one process own tensors and every other process of its user on the same host use them in place.
//
// # The life of a shared model
//
// An owner opens a [Server] on a Unix socket and publishes a state dict under a name. That freezes its memory against new writers, exports
// one handle for each storage (a model loaded by package module has one storage a device), and enters version 1 in the
// owner's books. A [Client] dials the socket and acquires the name: the owner notes a lease and answers with one frame that
// carries the manifest and the descriptors, the client maps each descriptor once, and the [Handle] holds a state dict of views.
// What that costs depends neither on the bytes nor, in system calls, on the number of tensors.
//
// Publishing the name again makes version 2 beside version 1. Whoever holds version 1 keeps it and hears of version 2 by
// event; whoever comes now gets version 2; when the last lease on version 1 goes, its memory does. No reader waits for a
// writer, and no writer for a reader.
//
// # Who holds what
//
// A lease belongs to the session, which is the connection. When the connection ends, by Close or because the process was killed, the
// kernel tells the owner and every lease of it goes back at once. The memory itself belongs to whoever has it mapped: it stays
// valid in the client until the handle is closed, whatever becomes of the lease, the owner or the socket. So the books say
// what the owner must keep for others, never what a reader may still touch.
//
// When the owner goes away, a client that holds handles or watchers dials again by itself. It takes its leases again from
// the same owner; a handle whose owner was replaced by another becomes [Orphaned] and stays readable.
//
// # Whom it trusts
//
// Nobody. The directory and the socket are for one user alone, both sides ask the kernel who is at the other end, and what a peer says
// about sizes, offsets, names and descriptors is checked before anything is mapped or allocated. Nothing that arrives
// is executed.
//
// Devices are handed in: the package knows none by name, so a program that shares host memory only links nothing of CUDA.
package endpoint

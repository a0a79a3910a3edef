// Command peers measures a call of package endpoint beside the same call made with other libraries, all between two
// processes of one host, over Unix sockets, in one run:
//
//	go run . [--quick] [--only CASE] [--rounds N] [--iceoryx2 PROGRAM] [--json]
//
// Each peer serves in a process of its own, which is this program started again. The cases are done in rounds, every
// peer in every round, so that whatever else the machine does falls on all of them. What is measured:
//
//   - call: 64 bytes there and back, one caller; median, 99th percentile, and the allocations and the processor time of both
//     processes together. endpoint looks at its socket again for a moment before it sleeps; the row "endpoint, sleeping" is without that.
//
//   - tensor: a tensor as argument. endpoint passes a handle to memory that is already shared, and the function finds it mapped; the
//     others have nothing of the kind, and carry the bytes. In the row "endpoint, read" the function also reads the first and
//     the last byte: what that adds is the kernel's, which maps pages when they are first touched and takes longer
//     to unmap those than others.
//
//   - callers: 64 bytes there and back, 64 callers at once, in calls a second
//
//   - results: a fresh, filled tensor with each answer, in memory that is used again and in memory of its own, beside a loaned
//     sample of iceoryx2, whose side is a small program in Rust that is built where cargo is
//
//   - attach: a model of 1,000 tensors beside one of one
//
//   - publish: 64 MiB again and again by a client, in memory that is used again beside fresh memory
//
//   - switch: from a publication until each of 100 watchers, which have a connection each, has acquired and read the version
//
//   - clients: calls of 1,000 clients at once beside calls of ten
//
//   - load: 1 GiB from the page cache beside a plain read, and from the disk beside runai-model-streamer where python3 has it
//
// Each target is a row of name, value, rival, ratio and bound; the program ends with status 1 where one is missed.
//
// The bare socket is the floor: a length and a CBOR item each way, by the library that endpoint encodes with, without
// ids, names, deadlines or cancellation. It has a connection for each caller, as net/http has; the others share one.
//
// The module is apart from the root module so that nobody who uses that depends on what is compared here.
package main

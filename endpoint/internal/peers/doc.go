// Command peers compares calls of package endpoint with the same calls in other libraries, between two processes of one
// host, over Unix sockets, in one run:
//
//	go run . [--quick] [--only CASE] [--rounds N] [--iceoryx2 PROGRAM] [--json]
//
// Each peer serves in a separate process, which runs this program. Every round measures every peer, so that other load
// on the machine affects all of them. The cases are:
//
//   - call: 64 bytes in each direction, one caller; median, 99th percentile, and the allocations and the processor time of both
//     processes. endpoint polls its socket briefly before it sleeps; the row "endpoint, sleeping" does not poll.
//
//   - tensor: a tensor as argument. endpoint passes a handle to shared memory, which the function's process has mapped. The
//     others copy the bytes. In the row "endpoint, read" the function also reads the first and the last byte. That adds
//     the kernel's work: it maps pages on first access, and takes longer to unmap pages that were accessed.
//
//   - callers: 64 bytes in each direction, 64 concurrent callers, in calls per second
//
//   - results: a fresh, filled tensor with each answer, in reused memory and in fresh memory, compared with a loaned
//     sample of iceoryx2. Its side is a small Rust program, which is built if cargo is installed
//
//   - attach: a model of 1,000 tensors compared with a model of one
//
//   - publish: a client publishes 64 MiB repeatedly, in reused memory compared with fresh memory
//
//   - switch: the time from a publication until each of 100 watchers, with separate connections, has acquired and read the version
//
//   - clients: calls of 1,000 concurrent clients compared with calls of ten
//
//   - load: 1 GiB from the page cache compared with a plain read, and from the disk compared with runai-model-streamer if python3 has it
//
// Each target is a row with name, value, rival, ratio and bound. The program exits with status 1 if a target is missed.
//
// The bare socket is the lower bound: a length and a CBOR item in each direction, encoded by the same library as
// endpoint's, without ids, names, deadlines or cancellation. It has a connection for each caller, like net/http. The
// others share one connection.
//
// This is a separate module, so that users of the root module do not depend on the compared libraries.
package main

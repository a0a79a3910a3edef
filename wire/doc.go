// Package wire carries messages and file descriptors between processes of one host, over a Unix stream socket.
//
// A [Conn] sends and receives frames: a 16-byte header, one CBOR item, and the descriptors that belong to it. A frame's
// body is one of the messages of this package (or, in a request and a response, of the operation it names), written by
// [Marshal] and read by [Unmarshal]. PROTOCOL.md is the protocol in words and drawings, protocol.cddl its schema, testdata
// the vectors that any other implementation can be held to.
//
// The package knows nothing of tensors or devices: its messages are plain numbers, strings and bytes. Everything that
// comes from the peer is checked against [Limits] before memory is allocated for it. A peer that breaks the protocol
// costs itself the connection: the error is [ErrProtocol], and all descriptors that came with it are closed.
//
// What surprises: descriptors arrive with the first byte they were sent with and with no other, so a socket that carries
// them must be read by recvmsg alone. Never read the socket of a Conn by other means.
package wire

// Package wire carries frames and file descriptors between processes of one host, over a Unix stream socket.
//
//	conn, err := wire.NewConn(socket, wire.Limits{})
//	err = conn.Send(wire.KindRequest, id, body, files...)
//	frame, err := conn.Receive()
//
// A [Conn] sends and receives frames: a 16-byte header, one CBOR item, and the descriptors that belong to it. The
// package does not look into the item: package wire/message has the messages. PROTOCOL.md is the protocol in words and
// drawings, protocol.cddl its schema, fields.json its tables for programs, and testdata the vectors that any other
// implementation can be held to.
//
// Everything that comes from the peer is checked against [Limits] before memory is allocated for it. A peer that breaks
// the protocol costs itself the connection: the error is [ErrProtocol], and all descriptors that came with it are
// closed.
//
// What surprises: descriptors arrive with the first byte they were sent with and with no other, so a socket that
// carries them must be read by recvmsg alone. Never read the socket of a Conn by other means.
package wire

// Package wire carries frames and file descriptors between processes of one host over a Unix stream socket.
//
//	conn, err := wire.NewConn(socket, wire.Limits{})
//	err = conn.Send(wire.KindRequest, id, body, files...)
//	frame, err := conn.Receive()
//
// A frame is a 16-byte header, one CBOR item, and its descriptors. Package wire/message defines the items. PROTOCOL.md
// specifies the protocol, protocol.cddl is its schema, fields.json has its tables, and testdata has vectors for other
// implementations.
//
// All input is checked against [Limits] before memory is allocated for it. If a peer violates the protocol, the
// connection ends with [ErrProtocol] and all received descriptors are closed.
//
// A surprise: descriptors arrive with the first byte that they were sent with. A socket that carries them must be read
// by recvmsg alone, so never read the socket of a Conn directly.
package wire

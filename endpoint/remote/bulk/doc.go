// Package bulk sends and receives protobuf messages with one large field of bytes without copying that field.
//
// The codec of grpc-go copies the field twice on its way out (into the message, into the encoding) and twice on its way
// in. Here it stays where it lies: a Message has the large field as buffers beside the rest of the message, the codec
// writes the rest, then the field's tag and length, and hands the buffers themselves to the transport. On the way in,
// the field is the buffers that the transport received. What is on the wire is ordinary protobuf, so that generated
// clients in any language are peers.
//
//	server := grpc.NewServer(bulk.ServerOptions()...)
//	conn, err := grpc.NewClient(target, append(bulk.DialOptions(), credentials)...)
//
// Parts is the same for a repeated field of bytes. Both also work on servers and connections without the codec, by the
// copies named above.
package bulk

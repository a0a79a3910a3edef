// Package bulk sends and receives protobuf messages with one large bytes field without copying that field.
//
// grpc-go's codec copies the field twice when it sends (into the message and into the encoding) and twice when it
// receives. A Message holds the large field as buffers outside the protobuf message. The codec writes the rest of the
// message and the field's tag and length, and passes the buffers to the transport unchanged. A receiver gets the field
// as the buffers that the transport has received. The wire format is ordinary protobuf, so generated clients in any
// language are compatible.
//
//	server := grpc.NewServer(bulk.ServerOptions()...)
//	conn, err := grpc.NewClient(target, append(bulk.DialOptions(), credentials)...)
//
// Parts does the same for a repeated bytes field. Both types also work on servers and connections without the codec,
// with the copies described above.
package bulk

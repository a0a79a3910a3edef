// Package message defines the messages of the protocol: the bodies of frames.
//
//	body, err := message.Marshal(message.Acquire{Name: "llm"})
//	var answer message.Acquired
//	err = message.Unmarshal(frame.Body, &answer)
//
// A request names an operation ([Op]) and contains the body of that operation. Answers, errors ([Error] with a [Code])
// and events have their own messages. Messages consist of numbers, strings and bytes; the package does not depend on
// tensors or devices. [Marshal] writes deterministic CBOR. [Unmarshal] refuses input that is not strictly encoded, too
// deep or too long before it allocates. Manifests are columns, one for each property of all tensors, because a model
// has thousands of tensors ([Manifest]). [ClientHandshake] and [ServerHandshake] run the handshake on a wire.Conn.
//
// PROTOCOL.md in package wire is the specification.
package message

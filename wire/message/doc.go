// Package message has the messages of the protocol: what the bodies of frames say.
//
//	body, err := message.Marshal(message.Acquire{Name: "llm"})
//	var answer message.Acquired
//	err = message.Unmarshal(frame.Body, &answer)
//
// A request names an operation ([Op]) and has the body of that operation; answers, errors ([Error], with a [Code]) and
// events have theirs. Messages are plain numbers, strings and bytes: the package knows nothing of tensors or devices.
// [Marshal] writes deterministic CBOR; [Unmarshal] refuses what is not strictly encoded, too deep or too long, before
// it allocates. Manifests are columns, one for each property of all tensors, since a model has thousands of them
// ([Manifest]). [ClientHandshake] and [ServerHandshake] are the handshake on a wire.Conn.
//
// PROTOCOL.md beside package wire describes all of it in words.
package message

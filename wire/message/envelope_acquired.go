package message

// Answers to readers of a version differ only in the lease. The large part, manifest and handles, is encoded once and
// sent behind a separate head for each reader ([wire.Conn.SendShared]).

// MarshalAcquiredTail encodes the part of an [Acquired] after its head: the manifest, the handles, the source, which
// must be valid UTF-8, and the digest. manifest is the encoded manifest within tail. It returns the errors of [Marshal].
func MarshalAcquiredTail(m *Manifest, handles []Handle, source string, digest []byte) (tail []byte, manifest RawMessage, err error) {
	columns, err := Marshal(m)
	if err != nil {
		return nil, nil, err
	}
	list, err := Marshal(handles)
	if err != nil {
		return nil, nil, err
	}
	tail = make([]byte, 0, len(columns)+len(list)+len(digest)+5)
	tail = append(append(tail, 4), columns...)
	tail = append(append(tail, 5), list...)
	if source != "" {
		tail = append(appendHead(append(tail, 6), cborText, uint64(len(source))), source...)
	}
	if len(digest) > 0 {
		tail = append(appendHead(append(tail, 7), cborBytes, uint64(len(digest))), digest...)
	}
	return tail, tail[1 : 1+len(columns) : 1+len(columns)], nil
}

// AppendAcquiredHead appends the head of an [Acquired]. Followed by a tail it equals the result of [Marshal]. optional is
// the number of optional fields of the tail: source and digest. The name must be valid UTF-8.
func AppendAcquiredHead(b []byte, lease uint64, name string, version uint64, optional int) []byte {
	fields := byte(5 + optional)
	b = appendHead(append(b, cborMap<<5|fields, 1), cborUnsigned, lease)
	b = append(appendHead(append(b, 2), cborText, uint64(len(name))), name...)
	return appendHead(append(b, 3), cborUnsigned, version)
}

// MarshalInfoHead encodes an [InfoResult] up to its manifest, which must follow.
func MarshalInfoHead(model *ModelInfo) ([]byte, error) {
	item, err := MarshalShown(model)
	if err != nil {
		return nil, err
	}
	b := append(make([]byte, 0, len(item)+3), cborMap<<5|2, 1)
	return append(append(b, item...), 2), nil
}

// AcquiredHead is an [Acquired] with its manifest still encoded, for readers that have decoded the same manifest
// before.
type AcquiredHead struct {
	// Lease, Name, Version, Handles, Source and Digest are those of the message.
	Lease   uint64   `cbor:"1,keyasint"`
	Name    string   `cbor:"2,keyasint"`
	Version uint64   `cbor:"3,keyasint"`
	Handles []Handle `cbor:"5,keyasint"`
	Source  string   `cbor:"6,keyasint,omitempty"`
	Digest  []byte   `cbor:"7,keyasint,omitempty"`
	// Manifest is the encoded [Manifest], part of the decoded data. It is well-formed; [Unmarshal] checks the rest.
	Manifest EncodedItem `cbor:"4,keyasint"`
}

// EncodedItem is an encoded item that is part of the decoded data, without a copy.
type EncodedItem []byte

// UnmarshalCBOR implements cbor.Unmarshaler.
func (e *EncodedItem) UnmarshalCBOR(data []byte) error {
	*e = data
	return nil
}

// UnmarshalAcquired decodes an [Acquired] except its manifest, with the checks of [Unmarshal].
func UnmarshalAcquired(data []byte) (AcquiredHead, error) {
	var head AcquiredHead
	if err := Unmarshal(data, &head); err != nil {
		return AcquiredHead{}, err
	}
	return head, nil
}

package message

// Readers of a version differ in their lease alone. What is large, the manifest and the handles, is encoded once, and
// sent to each behind a head of its own ([Conn.SendShared]).

// MarshalAcquiredTail encodes what follows the head of an [Acquired]: the manifest and the handles. manifest is the
// part of it that is the manifest. Errors are those of [Marshal].
func MarshalAcquiredTail(m *Manifest, handles []Handle) (tail []byte, manifest RawMessage, err error) {
	columns, err := Marshal(m)
	if err != nil {
		return nil, nil, err
	}
	list, err := Marshal(handles)
	if err != nil {
		return nil, nil, err
	}
	tail = make([]byte, 0, len(columns)+len(list)+2)
	tail = append(append(tail, 4), columns...)
	tail = append(append(tail, 5), list...)
	return tail, tail[1 : 1+len(columns) : 1+len(columns)], nil
}

// AppendAcquiredHead appends the head of an [Acquired]: with a tail behind it, it is what [Marshal] would make. The
// name must be valid UTF-8.
func AppendAcquiredHead(b []byte, lease uint64, name string, version uint64) []byte {
	b = appendHead(append(b, cborMap<<5|5, 1), cborUnsigned, lease)
	b = append(appendHead(append(b, 2), cborText, uint64(len(name))), name...)
	return appendHead(append(b, 3), cborUnsigned, version)
}

// MarshalInfoHead encodes an [InfoResult] up to its manifest, which is to follow.
func MarshalInfoHead(model *ModelInfo) ([]byte, error) {
	item, err := Marshal(model)
	if err != nil {
		return nil, err
	}
	b := append(make([]byte, 0, len(item)+3), cborMap<<5|2, 1)
	return append(append(b, item...), 2), nil
}

// AcquiredHead is an [Acquired] whose manifest is still encoded: whoever has decoded the same one before need not do it
// again.
type AcquiredHead struct {
	// Lease, Name, Version and Handles are those of the message.
	Lease   uint64   `cbor:"1,keyasint"`
	Name    string   `cbor:"2,keyasint"`
	Version uint64   `cbor:"3,keyasint"`
	Handles []Handle `cbor:"5,keyasint"`
	// Manifest is the encoded [Manifest], a part of the data that was decoded. It is well-formed; [Unmarshal] checks the
	// rest.
	Manifest EncodedItem `cbor:"4,keyasint"`
}

// EncodedItem is an encoded item that is decoded without a copy: it is a part of the data.
type EncodedItem []byte

// UnmarshalCBOR implements cbor.Unmarshaler.
func (e *EncodedItem) UnmarshalCBOR(data []byte) error {
	*e = data
	return nil
}

// UnmarshalAcquired decodes an [Acquired] up to its manifest, with the checks of [Unmarshal] for the rest.
func UnmarshalAcquired(data []byte) (AcquiredHead, error) {
	var head AcquiredHead
	if err := Unmarshal(data, &head); err != nil {
		return AcquiredHead{}, err
	}
	return head, nil
}

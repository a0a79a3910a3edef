package message

// Manifest lists the tensors of a state dict in columns, one for each property, so that ten thousand tensors are a
// handful of CBOR items. All numbers in byte strings are little-endian. [NewManifest] fills it. [Manifest.Decode]
// validates it; its content must not be used before.
type Manifest struct {
	// Names is the concatenation of all names.
	Names string `cbor:"1,keyasint"`
	// NameLengths has one uint32 for each tensor: the length of its name in bytes.
	NameLengths []byte `cbor:"2,keyasint"`
	// DTypes has one byte for each tensor: the number of its data type.
	DTypes []byte `cbor:"3,keyasint"`
	// Ranks has one byte for each tensor: the number of its dimensions.
	Ranks []byte `cbor:"4,keyasint"`
	// Dims is the concatenation of all dimensions, as int64.
	Dims []byte `cbor:"5,keyasint"`
	// Storage has one uint32 for each tensor: the index of its storage.
	Storage []byte `cbor:"6,keyasint"`
	// Offsets has one int64 for each tensor: the byte offset of its first element in the storage.
	Offsets []byte `cbor:"7,keyasint"`
	// Strided holds the indices of the tensors that are not contiguous, as uint32, ascending.
	Strided []byte `cbor:"8,keyasint,omitempty"`
	// Strides is the concatenation of the strides in elements of the tensors in Strided, as int64.
	Strides []byte `cbor:"9,keyasint,omitempty"`
	// Digests has 32 bytes for each tensor, the SHA-256 of its row-major bytes, or is empty.
	Digests []byte `cbor:"10,keyasint,omitempty"`
	// Storages are the storages.
	Storages []Storage `cbor:"11,keyasint"`
	// Metadata holds free texts.
	Metadata map[string]string `cbor:"12,keyasint,omitempty"`
}

// Len returns the number of tensors.
func (m *Manifest) Len() int { return len(m.NameLengths) / 4 }

// Storage is a range of bytes on one device.
type Storage struct {
	_ struct{} `cbor:",toarray"`
	// Bytes is its size.
	Bytes uint64
	// Device is the device that holds it.
	Device UUID
	// Type is DLPack's number for the kind of memory.
	Type int32
}

// Tensor is one row of a [Manifest].
type Tensor struct {
	// Name is the tensor's name.
	Name string
	// DType is the number of the data type, not 0.
	DType uint8
	// Storage is an index into [Manifest.Storages].
	Storage uint32
	// ByteOffset is the offset of the first element in the storage.
	ByteOffset int64
	// Shape are the dimensions.
	Shape []int64
	// Strides are in elements; nil for a contiguous row-major tensor, else as many as dimensions.
	Strides []int64
	// Digest is the SHA-256 of the row-major bytes, or nil.
	Digest []byte
}

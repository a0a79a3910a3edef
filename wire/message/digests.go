package message

// FeatureDigests is the feature of servers that compute digests of what is published ([Publish].Digests, [OpDigests]),
// and of clients that know them.
const FeatureDigests = "digests"

// DigestState says how the digests stand that a server computes of a version.
type DigestState uint8

// The states of digests. Numbers are stable; 0 is a version of which the server computes none, and a client takes one
// that it does not know for that.
const (
	// DigestPending are digests that are not computed yet.
	DigestPending DigestState = 1
	// DigestComputed are digests that the server has computed.
	DigestComputed DigestState = 2
	// DigestFailed are digests that could not be computed.
	DigestFailed DigestState = 3
)

// String is "pending", "computed", "failed", or nothing.
func (s DigestState) String() string {
	switch s {
	case DigestPending:
		return "pending"
	case DigestComputed:
		return "computed"
	case DigestFailed:
		return "failed"
	}
	return ""
}

// Digests asks for the digests that the server computes of a version. The answer comes when they are computed.
type Digests struct {
	// Name is the published name.
	Name string `cbor:"1,keyasint"`
	// Version is the version, or 0 for the newest.
	Version uint64 `cbor:"2,keyasint,omitempty"`
}

// Digested answers [Digests].
type Digested struct {
	// Version is the version.
	Version uint64 `cbor:"1,keyasint"`
	// Whole is the digest of the whole: 32 bytes.
	Whole []byte `cbor:"2,keyasint"`
	// Tensors has 32 bytes a tensor, in the order of the manifest: the SHA-256 of its row-major bytes.
	Tensors []byte `cbor:"3,keyasint,omitempty"`
}

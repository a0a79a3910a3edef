package message

// FeatureDigests is the feature of servers that compute digests of published versions ([Publish].Digests, [OpDigests]),
// and of clients that use them.
const FeatureDigests = "digests"

// DigestState is the state of the digests that a server computes of a version.
type DigestState uint8

// The states of digests. Numbers are stable; 0 is a version without computed digests, and a client treats an unknown
// state as 0.
const (
	// DigestPending means that the digests are not computed yet.
	DigestPending DigestState = 1
	// DigestComputed means that the server has computed the digests.
	DigestComputed DigestState = 2
	// DigestFailed means that the digests could not be computed.
	DigestFailed DigestState = 3
)

// String returns "pending", "computed", "failed", or an empty text.
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

// Digests requests the digests that the server computes of a version. The answer is sent when they are computed.
type Digests struct {
	// Name is the published name.
	Name string `cbor:"1,keyasint"`
	// Version is the version, or 0 for the newest.
	Version uint64 `cbor:"2,keyasint,omitempty"`
	// Part limits [Digested].Tensors to a part, if [FeatureParts] was agreed; nil is the whole version.
	Part *Part `cbor:"3,keyasint,omitempty"`
}

// Digested answers [Digests].
type Digested struct {
	// Version is the version.
	Version uint64 `cbor:"1,keyasint"`
	// Whole is the digest of the whole version: 32 bytes.
	Whole []byte `cbor:"2,keyasint"`
	// Tensors has 32 bytes for each tensor, in the order of the manifest: the SHA-256 of its row-major bytes.
	Tensors []byte `cbor:"3,keyasint,omitempty"`
}

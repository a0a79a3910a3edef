// Package mirror copies a model from elsewhere to the owner on this host. The source is another host's gateway, or
// safetensors files in a folder, on the Hugging Face hub, in an OCI registry, or in a bucket.
//
//	m, err := mirror.New(mirror.Options{Source: "https://gpu7:2537/llm", Owner: client, Device: dev})
//	result, err := m.Pull(ctx)    // once
//	err = m.Follow(ctx)           // and each newest version after that
//
// The bytes are copied from the connections directly to one new slab of shared memory, in several ranges at once. The
// SHA-256 of each tensor of a gateway, and of each file of a registry or the hub, is verified. The slab is published as
// the next version only if all digests match. Readers of the owner get the old version or the new one, always complete.
//
// # Trust
//
// The source is not trusted. The manifest's size is limited, and it is validated before memory is allocated. A response
// must contain the requested range. Redirects must stay on the host. Bytes must match the digests of the manifest. If
// both the manifest and the bytes are forged, only Options.Digest detects it.
//
// # Transfers that are avoided
//
// Tensors that this host's owner already has in the newest version of the name are recognized by their digests and
// copied. Tensors that have partly changed are updated with deltas from the source, or from another mirror
// ([Options.Peers]) that was updated from the same version.
package mirror

// Package mirror makes a model that lies elsewhere a model of the owner on this host: one that another host's gateway
// serves, or safetensors files in a folder, at the Hugging Face hub, in an OCI registry, or in a bucket.
//
//	m, err := mirror.New(mirror.Options{Source: "https://gpu7:2537/llm", Owner: client, Device: dev})
//	result, err := m.Pull(ctx)    // once
//	err = m.Follow(ctx)           // and every newest version from then on
//
// The bytes go from the connections straight into one new slab of shared memory, in several ranges at once. Each tensor
// of a gateway, and each file of a registry or the hub, is held to its SHA-256, and only when all are right the slab is
// published, as the version beside the one before: readers of the owner get the old version or the new one, whole.
//
// # What is trusted
//
// Nothing that the source says: its manifest is bounded and checked before memory is taken, a range has to be the one
// that was asked for, a redirect has to stay on its host, and bytes have to have the digest of the manifest. A source
// that lies in both can only be found out by who knows what it should be: Options.Digest.
//
// # What is not fetched
//
// Tensors that the newest version of the name at the owner here has already, by their digests, are copied from it. Those
// that changed in part are made of it by deltas, from the source or from another mirror ([Options.Peers]) that was made
// by the same ones.
package mirror

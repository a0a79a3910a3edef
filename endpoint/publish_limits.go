package endpoint

// PublishLimits limits what clients may have published. A version counts from its publication until its memory is
// freed, so superseded and withdrawn versions count while they are leased. The owner's own publications do not count.
type PublishLimits struct {
	// Versions is the maximum number of versions of all names.
	Versions int
	// Storages is the maximum number of storages. Each uses a descriptor and a mapping in the owner.
	Storages int
	// Bytes limits the sizes of their files. Sparse files count in full.
	Bytes int64
	// ManifestBytes limits the sum of the costs of their manifests: upper bounds of the owner's memory for tensor names
	// and locations.
	ManifestBytes int64
}

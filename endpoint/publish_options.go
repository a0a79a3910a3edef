package endpoint

// PublishOptions say what is published beside the tensors. The zero value says nothing.
type PublishOptions struct {
	// Source is where the tensors come from, usually a file, shown to people. What is beyond 1 KiB is cut off.
	Source string
	// Digests has the owner compute the digest of each tensor and of the whole, in the background: the version is
	// published at once, [Client.Digests] waits for them, and [VersionInfo] says how they stand. The owner computes
	// those of one version at a time, on one processor, and stops when the version goes; it reads the bytes itself,
	// whatever [module.AddDigests] has put into the state dict. An owner that cannot is errors.ErrUnsupported, and
	// nothing is published.
	Digests bool
}

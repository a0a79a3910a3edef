package endpoint

// PublishOptions describes a publication beyond its tensors.
type PublishOptions struct {
	// Source is the origin of the tensors, usually a file, for people. It is truncated to 1 KiB.
	Source string
	// Digests requests that the owner compute the digest of each tensor and of the whole in the background. The version
	// is published at once; [Client.Digests] waits for them, and [VersionInfo] reports their state. The owner computes
	// one version at a time on one processor, and stops when the version is freed. It reads the bytes itself and
	// ignores digests from [module.AddDigests]. If the owner does not support this, publication fails with
	// errors.ErrUnsupported.
	Digests bool
	// After makes the number of the version greater than After, at most 2⁵³. It lets numbers continue after an owner's
	// restart ([FollowOptions.RefuseOlder]). Owners that do not support it ignore it.
	After uint64
}

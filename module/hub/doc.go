// Package hub finds models of the Hugging Face hub in the cache that its tools keep on this machine.
//
//	repo, err := hub.ParseRepo("openai-community/gpt2@main")
//	dir, commit, err := repo.Snapshot("")          // in the cache of the environment
//	sd, err := module.Load(ctx, dev, dir, module.LoadOptions{})
//
// It reads the cache and nothing else: it downloads nothing, and writes nothing. The cache is a folder with
// models--ORG--NAME for each repository, whose refs map branches and tags to commits, whose snapshots have a folder of
// links for each commit, and whose blobs have the files' bytes, named by what the hub calls them: the SHA-256 of files
// that are large.
package hub

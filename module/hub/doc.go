// Package hub finds models of the Hugging Face hub in the local cache of its tools.
//
//	repo, err := hub.ParseRepo("openai-community/gpt2@main")
//	dir, commit, err := repo.Snapshot("")          // in the cache of the environment
//	sd, err := module.Load(ctx, dev, dir, module.LoadOptions{})
//
// It only reads the cache; it neither downloads nor writes. The cache is a folder with models--ORG--NAME for each
// repository. Its refs map branches and tags to commits, its snapshots have a folder of links for each commit, and its
// blobs contain the files' bytes under the hub's names, which are the SHA-256 for large files.
package hub

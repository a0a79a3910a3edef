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

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// DefaultRevision is the revision of a [Repo] without one.
const DefaultRevision = "main"

var (
	// ErrNotCached means that the cache lacks a repository or a revision.
	ErrNotCached = errors.New("not in the local Hugging Face cache")
	// ErrName means that a text is not the name of a repository.
	ErrName = errors.New("not ORG/MODEL or ORG/MODEL@REVISION")
)

var (
	repoName  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?$`)
	commit    = regexp.MustCompile(`^[0-9a-f]{40}$`)
	revision  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._/-]{0,254}$`)
	etagBytes = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)
)

// Repo is a model of the hub at a revision.
type Repo struct {
	// ID is ORG/MODEL, or MODEL for the few without an organisation.
	ID string
	// Revision is a branch, a tag or a commit.
	Revision string
}

// ParseRepo parses ORG/MODEL[@REVISION]; the default revision is [DefaultRevision]. Errors are [ErrName].
func ParseRepo(text string) (Repo, error) {
	id, at, found := strings.Cut(text, "@")
	r := Repo{ID: id, Revision: at}
	if !found {
		r.Revision = DefaultRevision
	}
	if !repoName.MatchString(r.ID) || strings.Contains(r.ID, "--") || strings.Contains(r.ID, "..") {
		return Repo{}, fmt.Errorf("%q: %w", text, ErrName)
	}
	if !revision.MatchString(r.Revision) || strings.Contains(r.Revision, "..") || strings.Contains(r.Revision, "//") {
		return Repo{}, fmt.Errorf("%q: %w: the revision is a branch, a tag or a commit", text, ErrName)
	}
	return r, nil
}

// String returns the text that [ParseRepo] parses.
func (r Repo) String() string {
	if r.Revision == DefaultRevision {
		return r.ID
	}
	return r.ID + "@" + r.Revision
}

// Pinned reports whether the revision is a commit, which never changes.
func (r Repo) Pinned() bool { return commit.MatchString(r.Revision) }

// CacheDir returns the folder of the cache as the hub's tools locate it: $HF_HUB_CACHE, $HF_HOME/hub,
// $XDG_CACHE_HOME/huggingface/hub, or .cache/huggingface/hub in the user's home. It need not exist.
func CacheDir() (string, error) {
	if dir := os.Getenv("HF_HUB_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := HomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "hub"), nil
}

// HomeDir returns the folder of the hub's tools, which contains the cache and the user's token: $HF_HOME,
// $XDG_CACHE_HOME/huggingface, or .cache/huggingface in the user's home.
func HomeDir() (string, error) {
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return dir, nil
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "huggingface"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("the Hugging Face cache: %w; set HF_HOME", err)
	}
	return filepath.Join(home, ".cache", "huggingface"), nil
}

// folder returns the repository's folder in a cache; an empty cache means that of the environment.
func (r Repo) folder(cache string) (string, error) {
	if cache == "" {
		var err error
		if cache, err = CacheDir(); err != nil {
			return "", err
		}
	}
	return filepath.Join(cache, "models--"+strings.ReplaceAll(r.ID, "/", "--")), nil
}

// Snapshot returns the folder of the repository's files at its revision, and the commit, in a cache; an empty cache
// means [CacheDir]. The folder may be incomplete, for example after an interrupted download. Errors are [ErrNotCached].
func (r Repo) Snapshot(cache string) (dir, at string, err error) {
	folder, err := r.folder(cache)
	if err != nil {
		return "", "", err
	}
	at = r.Revision
	if !r.Pinned() {
		text, err := os.ReadFile(filepath.Join(folder, "refs", filepath.FromSlash(r.Revision)))
		if err != nil {
			return "", "", r.notCached(folder, err)
		}
		if at = strings.TrimSpace(string(text)); !commit.MatchString(at) {
			return "", "", fmt.Errorf("%s: %w: %s names no commit", r, ErrNotCached, filepath.Join(folder, "refs", r.Revision))
		}
	}
	dir = filepath.Join(folder, "snapshots", at)
	if info, err := os.Stat(dir); err != nil {
		return "", "", r.notCached(folder, err)
	} else if !info.IsDir() {
		return "", "", fmt.Errorf("%s: %w: %s is no folder", r, ErrNotCached, dir)
	}
	return dir, at, nil
}

// Blob returns the path of the blob named etag (the SHA-256 of a large file, in hexadecimal), if the cache has one of
// the given size. It may have been changed: compare it with its digest.
func (r Repo) Blob(cache, etag string, bytes int64) (path string, found bool) {
	folder, err := r.folder(cache)
	if err != nil || !etagBytes.MatchString(etag) {
		return "", false
	}
	path = filepath.Join(folder, "blobs", etag)
	info, err := os.Stat(path)
	return path, err == nil && info.Mode().IsRegular() && info.Size() == bytes
}

// notCached returns the error for a missing repository, with the remedy.
func (r Repo) notCached(folder string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrInvalid) {
		return fmt.Errorf("%s: %w", r, err)
	}
	how := "hf download " + r.ID
	if r.Revision != DefaultRevision {
		how += " --revision " + r.Revision
	}
	return fmt.Errorf("%s is %w (%s): get it with `%s`, or set HF_HOME to where it is", r, ErrNotCached, folder, how)
}

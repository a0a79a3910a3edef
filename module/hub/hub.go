// Package hub finds models of the Hugging Face hub in the local cache of its tools.
//
//	model, err := hub.ParseModel("openai-community/gpt2@main")
//	path, commit, err := model.Path("")          // in the cache of the environment
//	sd, err := module.Load(ctx, dev, path, module.LoadOptions{})
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
	"syscall"
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
// means [CacheDir]. The folder may be incomplete, for example after an interrupted download; [Model.Path] examines it. Errors
// are [ErrNotCached].
func (r Repo) Snapshot(cache string) (dir, at string, err error) {
	folder, err := r.folder(cache)
	if err != nil {
		return "", "", err
	}
	at = r.Revision
	if !r.Pinned() {
		ref := filepath.Join(folder, "refs", filepath.FromSlash(r.Revision))
		text, err := os.ReadFile(ref)
		if err != nil {
			return "", "", r.notCached(folder, err)
		}
		if at = strings.TrimSpace(string(text)); !commit.MatchString(at) {
			return "", "", fmt.Errorf("%s: %w: %s names no commit; remove it, and run `%s`", r, ErrNotCached, ref, r.Download(""))
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

// Download returns the command that downloads the repository, or one of its files, into the cache.
func (r Repo) Download(file string) string {
	how := "hf download " + r.ID
	if file != "" {
		how += " " + shellQuote(file)
	}
	if r.Revision != DefaultRevision {
		how += " --revision " + r.Revision
	}
	return how
}

// shellQuote returns a word of a shell for a name of the cache.
func shellQuote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./+=-]+$`)

// notCached returns the error for a missing repository or revision, with the remedy.
func (r Repo) notCached(folder string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrInvalid) && !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.EISDIR) {
		return fmt.Errorf("%s: %w", r, err)
	}
	if have := revisions(folder); len(have) > 0 {
		return fmt.Errorf("%s is %w: revision %s is not complete in %s, which has %s: get it with `%s`, or name one of these as %s@REVISION",
			r, ErrNotCached, r.Revision, folder, strings.Join(have, ", "), r.Download(""), r.ID)
	}
	return fmt.Errorf("%s is %w (%s): get it with `%s`, or set HF_HOME or HF_HUB_CACHE to where it is", r, ErrNotCached, folder, r.Download(""))
}

// shownRevisions is the maximum number of revisions in an error.
const shownRevisions = 5

// revisions returns the branches, tags and commits of a repository's folder that have a snapshot.
func revisions(folder string) []string {
	var have []string
	named := map[string]bool{}
	refs := filepath.Join(folder, "refs")
	_ = filepath.WalkDir(refs, func(path string, entry fs.DirEntry, err error) error { // best effort: it completes an error
		if err != nil || !entry.Type().IsRegular() || len(have) == shownRevisions {
			return nil
		}
		text, err := os.ReadFile(path)
		at := strings.TrimSpace(string(text))
		if err != nil || !commit.MatchString(at) || !isDir(filepath.Join(folder, "snapshots", at)) {
			return nil
		}
		if name, err := filepath.Rel(refs, path); err == nil {
			have, named[at] = append(have, filepath.ToSlash(name)), true
		}
		return nil
	})
	entries, _ := os.ReadDir(filepath.Join(folder, "snapshots")) // best effort, too
	for _, entry := range entries {
		if commit.MatchString(entry.Name()) && !named[entry.Name()] && len(have) < shownRevisions {
			have = append(have, entry.Name())
		}
	}
	return have
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

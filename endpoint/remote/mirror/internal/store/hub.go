package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
	"github.com/sharedtensor/sharedtensor/module/hub"
)

// Limits of the hub's responses, and how long the target of a redirect is reused.
const (
	maxListing  = 16 << 20
	targetLasts = 5 * time.Minute
)

var commitName = regexp.MustCompile(`^[0-9a-f]{40}$`)

// hubRepo is a model on the Hugging Face hub.
type hubRepo struct {
	repo     hub.Repo
	folder   string // in the repository; empty for its root
	endpoint string
	offline  bool
	header   http.Header
	client   *http.Client
}

func openHub(rest string, o Options) (Place, error) {
	repo, folder, err := parseHub(rest)
	if err != nil {
		return nil, fmt.Errorf("the source hf://%w", err)
	}
	h := &hubRepo{repo: repo, folder: folder, endpoint: "https://huggingface.co", client: NewHTTPClient(o.TLS, o.Connections, withoutCredentials), header: http.Header{}}
	plain := false
	if text := os.Getenv("HF_ENDPOINT"); text != "" {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			return nil, fmt.Errorf("HF_ENDPOINT %q is not https://HOST", text)
		}
		h.endpoint = strings.TrimSuffix(text, "/")
		plain = u.Scheme == "http" && !local.Reached(u.Hostname())
	}
	switch strings.ToUpper(os.Getenv("HF_HUB_OFFLINE")) {
	case "1", "ON", "YES", "TRUE":
		h.offline = true
	}
	if token := hubToken(o.Token); token != "" {
		if plain && !o.PlainToken && !h.offline {
			return nil, fmt.Errorf("HF_ENDPOINT %s would receive the token in clear text: use https, or --insecure-token to send it anyway", h.endpoint)
		}
		h.header.Set("Authorization", "Bearer "+token)
	}
	return h, nil
}

// parseHub parses ORG/MODEL[/FOLDER][@REVISION].
func parseHub(text string) (repo hub.Repo, folder string, err error) {
	name, revision, pinned := strings.Cut(text, "@")
	if parts := strings.SplitN(name, "/", 3); len(parts) == 3 {
		name, folder = parts[0]+"/"+parts[1], strings.TrimSuffix(parts[2], "/")
		if !fs.ValidPath(folder) || folder == "." {
			return repo, "", fmt.Errorf("%q: %q is not a folder in the repository", text, folder)
		}
	}
	if pinned {
		name += "@" + revision
	}
	repo, err = hub.ParseRepo(name)
	return repo, folder, err
}

// address returns the address of the model at a commit.
func (h *hubRepo) address(commit string) string {
	return "hf://" + path.Join(h.repo.ID, h.folder) + "@" + commit
}

// hubToken returns the given token, or the one that the hub's tools have stored for the user.
func hubToken(given string) string {
	for _, token := range []string{given, os.Getenv("HF_TOKEN")} {
		if token != "" {
			return token
		}
	}
	file := os.Getenv("HF_TOKEN_PATH")
	if home, err := hub.HomeDir(); file == "" && err == nil {
		file = filepath.Join(home, "token")
	}
	text, _ := os.ReadFile(file) // public models need no token
	return strings.TrimSpace(string(text))
}

// Name implements Place.
func (h *hubRepo) Name() string { return path.Base(path.Join(h.repo.ID, h.folder)) }

// Pinned implements Place.
func (h *hubRepo) Pinned() bool { return h.repo.Pinned() }

// Close implements Place.
func (h *hubRepo) Close() { h.client.CloseIdleConnections() }

// Find implements Place. Files in the cache are not requested. The hub returns the commit of a branch; if it cannot be
// reached, Find uses the cached commit.
func (h *hubRepo) Find(ctx context.Context) (*Model, error) {
	if h.offline || h.repo.Pinned() {
		m, err := h.cached(h.repo)
		if err == nil {
			return m, nil
		}
		if h.offline {
			return nil, fmt.Errorf("%w: HF_HUB_OFFLINE is set, and %w", ErrNotFound, err)
		}
	}
	listing, err := h.list(ctx)
	var status *StatusError
	if err != nil && !errors.As(err, &status) && !errors.Is(err, ErrAnswer) && ctx.Err() == nil {
		if m, cacheErr := h.cached(h.repo); cacheErr == nil {
			return m, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("hf://%s: %w", h.repo, err)
	}
	at := hub.Repo{ID: h.repo.ID, Revision: listing.SHA}
	if m, err := h.cached(at); err == nil {
		return m, nil
	}
	return h.remote(ctx, at, listing)
}

// cached returns the model from the local cache if the cache has all files.
func (h *hubRepo) cached(at hub.Repo) (*Model, error) {
	dir, commit, err := at.Snapshot("")
	if err != nil {
		return nil, err
	}
	m, err := openFiles(filepath.Join(dir, filepath.FromSlash(h.folder)))
	if err != nil {
		return nil, err
	}
	for _, f := range m.Files {
		if target, err := filepath.EvalSymlinks(f.Path); err == nil {
			f.SHA256 = parseSHA256(filepath.Base(target)) // the cache names large files by their digest
		}
	}
	m.Source = h.address(commit)
	return m, nil
}

// hubListing is the hub's API response for a model.
type hubListing struct {
	SHA      string `json:"sha"`
	Siblings []struct {
		Name string `json:"rfilename"`
		Size int64  `json:"size"`
		Blob string `json:"blobId"`
		LFS  *struct {
			SHA256 string `json:"sha256"`
			Size   int64  `json:"size"`
		} `json:"lfs"`
	} `json:"siblings"`
}

// list requests the commit of the revision and its files.
func (h *hubRepo) list(ctx context.Context) (*hubListing, error) {
	resp, err := get(ctx, h.client, h.endpoint+"/api/models/"+escaped(h.repo.ID)+"/revision/"+url.PathEscape(h.repo.Revision)+"?blobs=true", h.header.Clone())
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxListing+1))
	if err != nil {
		return nil, err
	}
	var out hubListing
	if err := json.Unmarshal(text, &out); err != nil || len(text) > maxListing || !commitName.MatchString(out.SHA) {
		return nil, fmt.Errorf("%w: the hub's list of files: %w", ErrAnswer, errors.Join(err, errors.New("no commit")))
	}
	return &out, nil
}

// remote returns the model on the hub. Large files in the cache are read from there.
func (h *hubRepo) remote(ctx context.Context, at hub.Repo, listing *hubListing) (_ *Model, err error) {
	where := h.address(at.Revision)
	names, files := []string(nil), map[string]*File{}
	m := &Model{Source: where}
	var opened []*os.File
	m.close = func() error {
		var errs []error
		for _, f := range opened {
			errs = append(errs, f.Close())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	for _, s := range listing.Siblings {
		name, inside := s.Name, true
		if h.folder != "" {
			name, inside = strings.CutPrefix(s.Name, h.folder+"/")
		}
		if !inside {
			continue
		}
		names = append(names, name)
		f := &File{Path: where + "/" + name, Bytes: s.Size, Identity: s.Blob}
		if s.LFS != nil {
			f.SHA256, f.Identity, f.Bytes = parseSHA256(s.LFS.SHA256), s.LFS.SHA256, s.LFS.Size
		}
		if f.Bytes < 0 || f.Identity == "" {
			f.Identity = at.Revision + "/" + s.Name
		}
		files[name] = f
		f.Open = (&hubFile{hub: h, address: h.endpoint + "/" + escaped(at.ID) + "/resolve/" + at.Revision + "/" + escaped(s.Name), bytes: f.Bytes}).open
	}
	index, one, err := pick(where, names)
	if err != nil {
		return nil, err
	}
	wanted := []string{one}
	if index != "" {
		if m.Index, err = readIndex(ctx, files[index]); err != nil {
			return nil, err
		}
		if wanted, err = shardsOf(where, m.Index); err != nil {
			return nil, err
		}
	}
	for _, name := range wanted {
		f := files[path.Join(path.Dir(index), name)]
		if f == nil {
			return nil, fmt.Errorf("%s: %w: the shard %s", where, ErrNotFound, name)
		}
		if blob, found := at.Blob("", f.Identity, f.Bytes); found {
			if file, err := os.Open(blob); err == nil {
				opened = append(opened, file)
				f.Open = func(_ context.Context, begin, end int64) (io.ReadCloser, error) {
					return io.NopCloser(io.NewSectionReader(file, begin, end-begin)), nil
				}
			}
		}
		m.Files = append(m.Files, f)
	}
	return m, nil
}

// hubFile is a file on the hub. The hub redirects to a temporary address of its content.
type hubFile struct {
	hub     *hubRepo
	address string
	bytes   int64

	mu     sync.Mutex
	target string
	since  time.Time
}

// known returns the target of a recent redirect; empty if there is none.
func (f *hubFile) known() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.since) > targetLasts {
		return ""
	}
	return f.target
}

func (f *hubFile) learn(target string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.target, f.since = target, time.Now()
}

func (f *hubFile) open(ctx context.Context, begin, end int64) (io.ReadCloser, error) {
	if target := f.known(); target != "" {
		resp, err := getRange(ctx, f.hub.client, target, nil, begin, end, f.bytes) // the address is signed, and must not receive the hub's token
		var status *StatusError
		if err == nil {
			return resp.Body, nil
		}
		if !errors.As(err, &status) || status.Status >= 500 {
			return nil, err
		}
		f.learn("") // the signature may have expired
	}
	resp, err := getRange(ctx, f.hub.client, f.address, f.hub.header, begin, end, f.bytes)
	if err != nil {
		return nil, err
	}
	if u := resp.Request.URL; !strings.HasPrefix(u.String(), f.hub.endpoint+"/") {
		f.learn(u.String())
	}
	return resp.Body, nil
}

// Package store finds models stored as safetensors files in a folder, on the Hugging Face hub, in an OCI registry, or
// in a bucket of S3 or Google Cloud Storage.
//
//	place, err := store.Open("oci://ghcr.io/org/model:v1", store.Options{})
//	model, err := place.Find(ctx)             // the current version
//	body, err := model.Files[0].Open(ctx, begin, end)
//
// Callers must validate the data of a place: sizes and headers before they allocate memory, and content by its digest
// if the place provides one. Credentials are sent only to the host that they belong to, also if it redirects to another
// one.
package store

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// Options configures access to places.
type Options struct {
	// Token is the token for the hub; empty means the token stored by the hub's tools.
	Token string
	// PlainToken permits sending the token to another host without TLS.
	PlainToken bool
	// TLS configures connections; nil means the system's certificate authorities.
	TLS *tls.Config
	// Connections is the number of concurrent requests.
	Connections int
}

// Place is the location of a model.
type Place interface {
	// Find returns the model's current version. The caller closes it.
	Find(ctx context.Context) (*Model, error)
	// Name returns the default name of the model.
	Name() string
	// Pinned reports whether the address names one immutable revision.
	Pinned() bool
	// Close closes idle connections.
	Close()
}

// Model holds the files of one version of a model.
type Model struct {
	// Source is the address with the revision. It changes if the files change.
	Source string
	// Index is the content of model.safetensors.index.json; nil if there is none and Files is complete.
	Index []byte
	// Files are the files with tensors.
	Files []*File

	close func() error
}

// Close closes the files opened by Find.
func (m *Model) Close() error {
	if m == nil || m.close == nil {
		return nil
	}
	return m.close()
}

// File is one file of a model.
type File struct {
	// Path names the file in errors; its last element is the file name.
	Path string
	// Bytes is the size of the file.
	Bytes int64
	// SHA256 is the digest of the file, provided by the place; zero if the place has none.
	SHA256 module.Digest
	// Identity identifies the content: files with the same identity have the same content.
	Identity string
	// Open reads the bytes from begin to end. The reader may return more if the place sends more.
	Open func(ctx context.Context, begin, end int64) (io.ReadCloser, error)
	// Unchanged, if not nil, returns an error if the file was written to since it was found. Call it after the last
	// byte.
	Unchanged func() error
}

// Schemes are the URL schemes that Open accepts.
var Schemes = []string{"file", "gs", "hf", "oci", "s3"}

// Is reports whether an address has one of the Schemes.
func Is(address string) bool {
	scheme, _, found := strings.Cut(address, ":")
	return found && slices.Contains(Schemes, scheme)
}

// Open returns the place with the given address. It does not connect. The caller closes it.
//
//	file:///models/llm                a file, an index, or a folder with either
//	hf://ORG/MODEL[/FOLDER][@REVISION]   at the Hugging Face hub
//	oci://HOST/REPOSITORY[:TAG|@DIGEST]
//	s3://BUCKET/KEY, gs://BUCKET/KEY  a file, or a prefix as a folder
func Open(address string, o Options) (Place, error) {
	scheme, rest, _ := strings.Cut(address, ":")
	rest = strings.TrimPrefix(rest, "//")
	if rest == "" {
		return nil, fmt.Errorf("the source %q names no model", address)
	}
	if o.Connections <= 0 {
		o.Connections = 1
	}
	switch scheme {
	case "file":
		return openFolder(address, rest)
	case "hf":
		return openHub(rest, o)
	case "oci":
		return openRegistry(rest, o)
	case "s3":
		return openBucket(rest, o)
	case "gs":
		return openGoogle(rest, o)
	}
	return nil, fmt.Errorf("the source %q must begin with one of %s", address, strings.Join(Schemes, ", "))
}

// baseName returns the default name of a model at a path.
func baseName(name string) string {
	name = path.Base(strings.TrimSuffix(name, "/"))
	for _, suffix := range []string{".json", ".index", ".safetensors"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}

// identityOf returns a short revision computed from the identities of files.
func identityOf(files []*File) string {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%d:%s %d:%s\n", len(f.Path), f.Path, len(f.Identity), f.Identity)
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

const (
	fileName    = "model.safetensors"
	indexSuffix = ".safetensors.index.json"
)

// pick selects the model from the file names of a folder, as [safetensors.Open] does: the index, or the only file.
func pick(where string, names []string) (index, file string, err error) {
	if slices.Contains(names, fileName) {
		return "", fileName, nil
	}
	if name := "model" + indexSuffix; slices.Contains(names, name) {
		return name, "", nil
	}
	var indices, files, others []string
	for _, name := range names {
		switch {
		case strings.Contains(name, "/"):
		case strings.HasSuffix(name, indexSuffix):
			indices = append(indices, name)
		case strings.HasSuffix(name, ".safetensors"):
			files = append(files, name)
		case strings.HasSuffix(name, ".gguf"), strings.HasSuffix(name, ".bin"), strings.HasSuffix(name, ".pt"), strings.HasSuffix(name, ".onnx"):
			others = append(others, name)
		}
	}
	switch {
	case len(indices) == 1:
		return indices[0], "", nil
	case len(indices) == 0 && len(files) == 1:
		return "", files[0], nil
	case len(indices)+len(files) > 1:
		return "", "", fmt.Errorf("%s: %w: %s; name one", where, safetensors.ErrAmbiguous, strings.Join(append(indices, files...), ", "))
	case len(others) > 0:
		return "", "", fmt.Errorf("%s: %w: it has %s, which has to be converted first", where, ErrUnsupported, others[0])
	}
	return "", "", fmt.Errorf("%s: %w: no .safetensors file found", where, ErrNotFound)
}

// shardsOf returns the file names in an index.
func shardsOf(where string, index []byte) ([]string, error) {
	parsed, err := safetensors.ParseIndex(index)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", where, ErrAnswer, err)
	}
	return parsed.Shards, nil
}

// readIndex reads a whole small file.
func readIndex(ctx context.Context, f *File) ([]byte, error) {
	if f.Bytes > safetensors.MaxHeaderBytes {
		return nil, fmt.Errorf("%s: %w: %d bytes", f.Path, safetensors.ErrIndexTooLarge, f.Bytes)
	}
	body, err := f.Open(ctx, 0, f.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path, err)
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, f.Bytes))
	if err == nil && int64(len(text)) != f.Bytes {
		err = io.ErrUnexpectedEOF
	}
	if err == nil && f.SHA256 != (module.Digest{}) && sha256.Sum256(text) != f.SHA256 {
		err = module.ErrDigest
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path, err)
	}
	return text, nil
}

// parseSHA256 parses a hexadecimal digest. It returns zero if the text is not a digest.
func parseSHA256(text string) (d module.Digest) {
	if raw, err := hex.DecodeString(text); err == nil && len(raw) == len(d) {
		copy(d[:], raw)
	}
	return d
}

// escaped returns a path with each element escaped.
func escaped(p string) string {
	parts := strings.Split(p, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}

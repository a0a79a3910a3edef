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

// Options are what places need beside their address.
type Options struct {
	// Token is what the hub asks for; that of the hub's tools where it is empty.
	Token string
	// TLS is how hosts are reached; nil for the certificate authorities of this system.
	TLS *tls.Config
	// Connections is how many requests are made at once.
	Connections int
}

// Place is where a model lies.
type Place interface {
	// Find looks for the model and says what is there now. The caller closes the model.
	Find(ctx context.Context) (*Model, error)
	// Name is what the model is called where no other name is given.
	Name() string
	// Pinned reports whether the address names one revision, which never changes.
	Pinned() bool
	// Close gives connections back.
	Close()
}

// Model is the files of one model as they were found.
type Model struct {
	// Source is the address with the revision, which is the same as long as the files are.
	Source string
	// Index is the text of model.safetensors.index.json; nil where there is none, and Files are all there is.
	Index []byte
	// Files have the tensors.
	Files []*File

	close func() error
}

// Close gives back what Find opened.
func (m *Model) Close() error {
	if m == nil || m.close == nil {
		return nil
	}
	return m.close()
}

// File is one file of a model.
type File struct {
	// Path is what errors call it; its last element is its name.
	Path string
	// Bytes is how long it is.
	Bytes int64
	// SHA256 is the digest of its bytes as the place has it; zero where it has none.
	SHA256 module.Digest
	// Identity names the bytes: another file with the same identity has the same.
	Identity string
	// Open reads the bytes from begin to end. Where the place sends more behind end, the reader does too.
	Open func(ctx context.Context, begin, end int64) (io.ReadCloser, error)
	// Unchanged, if not nil, fails where the file has been written since it was found. It is asked after the last byte.
	Unchanged func() error
}

// Schemes are the beginnings of addresses that Open knows.
var Schemes = []string{"file", "hf", "oci", "s3"}

// Is reports whether an address is one of a place.
func Is(address string) bool {
	scheme, _, found := strings.Cut(address, ":")
	return found && slices.Contains(Schemes, scheme)
}

// Open makes a place of its address, and connects to nothing. The caller closes it.
//
//	file:///models/llm                a file, an index, or a folder with either
//	hf://ORG/MODEL[@REVISION]         at the Hugging Face hub
//	oci://HOST/REPOSITORY[:TAG|@DIGEST]
//	s3://BUCKET/KEY                   a file, or a prefix as a folder
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
	}
	return nil, fmt.Errorf("the source %q begins with none of %s", address, strings.Join(Schemes, ", "))
}

// baseName is what a model at a path is called.
func baseName(name string) string {
	name = path.Base(strings.TrimSuffix(name, "/"))
	for _, suffix := range []string{".json", ".index", ".safetensors"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}

// identityOf makes one short revision of the identities of files.
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

// pick finds the model among the names of a folder, as [safetensors.Open] does: the index, or the one file.
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
	return "", "", fmt.Errorf("%s: %w: no .safetensors file is there", where, ErrNotFound)
}

// shardsOf are the names of the files that an index names.
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

// parseSHA256 reads a digest in hexadecimal; zero where it is none.
func parseSHA256(text string) (d module.Digest) {
	if raw, err := hex.DecodeString(text); err == nil && len(raw) == len(d) {
		copy(d[:], raw)
	}
	return d
}

// escaped is a path with each of its elements escaped.
func escaped(p string) string {
	parts := strings.Split(p, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}

package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/local"
)

// Media types of layers: ModelPack's current and earlier ones, and Docker's.
var (
	weightTypes = []string{
		"application/vnd.cncf.model.weight.v1.raw", "application/vnd.cnai.model.weight.v1.raw", "application/vnd.docker.ai.safetensors",
	}
	configTypes = []string{
		"application/vnd.cncf.model.weight.config.v1.raw", "application/vnd.cnai.model.weight.config.v1.raw",
	}
	nameAnnotations = []string{"org.cncf.model.filepath", "org.cnai.model.filepath", ocispec.AnnotationTitle}
)

// unpackAnnotation marks a layer that oras has packed from a folder.
const unpackAnnotation = "io.deis.oras.content.unpack"

// maxLayers limits the layers of a manifest.
const maxLayers = 100_000

// registryRepo is a model in an OCI registry.
type registryRepo struct {
	repo   *remote.Repository
	client *auth.Client
	http   *http.Client
}

func openRegistry(rest string, o Options) (Place, error) {
	repo, err := remote.NewRepository(rest)
	if err != nil {
		return nil, fmt.Errorf("the source oci://%s: %w", rest, err)
	}
	if repo.Reference.Reference == "" {
		repo.Reference.Reference = "latest"
	}
	plain := NewHTTPClient(o.TLS, o.Connections, withoutCredentials)
	client := &auth.Client{Client: plain, Cache: auth.NewCache(), ClientID: "sharedtensor"}
	if stored, err := credentials.NewStoreFromDocker(credentials.StoreOptions{}); err == nil {
		client.Credential = credentials.Credential(stored)
	}
	repo.Client, repo.PlainHTTP = client, isLoopback(repo.Reference.Registry)
	return &registryRepo{repo, client, plain}, nil
}

// isLoopback reports whether a registry is on this host. Like Docker, the client uses HTTP without TLS there.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return local.Loopback(host)
}

// Name implements Place.
func (r *registryRepo) Name() string { return path.Base(r.repo.Reference.Repository) }

// Pinned implements Place.
func (r *registryRepo) Pinned() bool { return r.repo.Reference.ValidateReferenceAsDigest() == nil }

// Close implements Place.
func (r *registryRepo) Close() { r.http.CloseIdleConnections() }

// Find implements Place.
func (r *registryRepo) Find(ctx context.Context) (*Model, error) {
	m, err := r.find(ctx)
	if err != nil {
		return nil, fmt.Errorf("oci://%s: %w", r.repo.Reference, statusOf(err))
	}
	return m, nil
}

func (r *registryRepo) find(ctx context.Context) (*Model, error) {
	desc, text, err := r.fetch(ctx, r.repo.Reference.Reference)
	if err != nil {
		return nil, err
	}
	if desc.MediaType == ocispec.MediaTypeImageIndex || strings.HasSuffix(desc.MediaType, "manifest.list.v2+json") {
		var index ocispec.Index
		if err := json.Unmarshal(text, &index); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrAnswer, err)
		}
		if len(index.Manifests) != 1 {
			return nil, fmt.Errorf("%w: this is an index of %d manifests; name one by its digest", ErrUnsupported, len(index.Manifests))
		}
		if desc, text, err = r.fetch(ctx, index.Manifests[0].Digest.String()); err != nil {
			return nil, err
		}
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(text, &manifest); err != nil {
		return nil, fmt.Errorf("%w: the manifest: %w", ErrAnswer, err)
	}
	at := r.repo.Reference
	at.Reference = desc.Digest.String()
	return r.model(ctx, at, &manifest)
}

// fetch fetches a manifest and verifies its digest and size.
func (r *registryRepo) fetch(ctx context.Context, reference string) (desc ocispec.Descriptor, text []byte, err error) {
	desc, body, err := r.repo.Manifests().FetchReference(ctx, reference)
	if err != nil {
		return desc, nil, err
	}
	defer body.Close()
	text, err = content.ReadAll(body, desc)
	if errors.Is(err, content.ErrMismatchedDigest) || errors.Is(err, content.ErrInvalidDescriptorSize) || errors.Is(err, content.ErrTrailingData) {
		err = fmt.Errorf("%w: the manifest: %w", ErrAnswer, err)
	}
	return desc, text, err
}

// model finds the layers that are safetensors files, and the index if there is one.
func (r *registryRepo) model(ctx context.Context, at registry.Reference, manifest *ocispec.Manifest) (*Model, error) {
	if len(manifest.Layers) > maxLayers {
		return nil, fmt.Errorf("%w: a manifest of %d layers", ErrAnswer, len(manifest.Layers))
	}
	m := &Model{Source: "oci://" + at.String()}
	var other string
	byName := map[string]*File{}
	for _, layer := range manifest.Layers {
		f, err := r.layer(at, layer)
		if err != nil {
			return nil, err
		}
		name := path.Base(f.Path)
		switch {
		case (slices.Contains(configTypes, layer.MediaType) || titled(layer)) && strings.HasSuffix(name, indexSuffix):
			if m.Index, err = readIndex(ctx, f); err != nil {
				return nil, err
			}
		case (slices.Contains(weightTypes, layer.MediaType) || titled(layer)) && strings.HasSuffix(name, ".safetensors"):
			byName[name] = f
			m.Files = append(m.Files, f)
		case layer.Annotations[unpackAnnotation] == "true":
			other = "a packed folder"
		case strings.Contains(layer.MediaType, ".model.weight.") || strings.Contains(layer.MediaType, "docker.ai.gguf"):
			other = layer.MediaType
		}
	}
	if len(m.Files) == 0 && other != "" {
		return nil, fmt.Errorf("%w: its layers are of %s; layers of raw .safetensors files are taken (%s)", ErrUnsupported, Shortened(other), weightTypes[0])
	}
	if len(m.Files) == 0 {
		return nil, fmt.Errorf("%w: no layer is a .safetensors file", ErrNotFound)
	}
	if m.Index == nil {
		return m, nil
	}
	shards, err := shardsOf(at.String(), m.Index)
	if err != nil {
		return nil, err
	}
	m.Files = m.Files[:0]
	for _, name := range shards {
		if byName[name] == nil {
			return nil, fmt.Errorf("%w: the shard %s", ErrNotFound, Shortened(name))
		}
		m.Files = append(m.Files, byName[name])
	}
	return m, nil
}

// titled reports whether a layer is a file of an artifact with a name, as the command oras pushes it with any media type.
// Folders, which oras packs, are not.
func titled(layer ocispec.Descriptor) bool {
	return layer.Annotations[ocispec.AnnotationTitle] != "" && layer.Annotations[unpackAnnotation] != "true" &&
		!strings.HasSuffix(layer.MediaType, "+gzip") && !strings.HasSuffix(layer.MediaType, "+zstd") && !strings.Contains(layer.MediaType, ".model.")
}

// layer returns a layer as a file.
func (r *registryRepo) layer(at registry.Reference, layer ocispec.Descriptor) (*File, error) {
	if err := layer.Digest.Validate(); err != nil || layer.Size < 0 {
		return nil, fmt.Errorf("%w: a layer of %d bytes with the digest %q", ErrAnswer, layer.Size, Shortened(layer.Digest.String()))
	}
	name := layer.Digest.Encoded() + ".safetensors"
	for _, key := range nameAnnotations {
		if title := layer.Annotations[key]; title != "" {
			name = path.Base(title)
			break
		}
	}
	f := &File{Path: "oci://" + at.Registry + "/" + at.Repository + "/" + name, Bytes: layer.Size, Identity: layer.Digest.String()}
	if layer.Digest.Algorithm() == "sha256" {
		f.SHA256 = parseSHA256(layer.Digest.Encoded())
	}
	if f.SHA256 == [32]byte{} {
		return nil, fmt.Errorf("%w: a layer with the digest %s: only sha256 is supported", ErrUnsupported, Shortened(layer.Digest.String()))
	}
	scheme := "https://"
	if r.repo.PlainHTTP {
		scheme = "http://"
	}
	address := scheme + at.Host() + "/v2/" + at.Repository + "/blobs/" + layer.Digest.String()
	f.Open = func(ctx context.Context, begin, end int64) (io.ReadCloser, error) {
		ctx = auth.AppendRepositoryScope(ctx, r.repo.Reference, auth.ActionPull)
		resp, err := getRange(ctx, r.client, address, nil, begin, end, layer.Size)
		if err != nil {
			return nil, statusOf(err)
		}
		return resp.Body, nil
	}
	return f, nil
}

// statusOf converts registry errors to this package's errors.
func statusOf(err error) error {
	var refused *errcode.ErrorResponse
	switch {
	case errors.As(err, &refused):
		said := http.StatusText(refused.StatusCode)
		if len(refused.Errors) > 0 {
			said = refused.Errors.Error()
		}
		return &StatusError{Status: refused.StatusCode, Text: Shortened(said)}
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return fmt.Errorf("%w: a login is required, run `docker login` first: %w", ErrDenied, err)
	case errors.Is(err, errdef.ErrNotFound):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case errors.Is(err, errdef.ErrSizeExceedsLimit):
		return fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	return err
}

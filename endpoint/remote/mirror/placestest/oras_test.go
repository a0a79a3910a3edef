package placestest_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/file"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
)

// orasPlace returns a repository whose artifacts are pushed by the library and with the media types of the command
// oras: oras push HOST/org/m:v1 FILE...
func orasPlace(t testing.TB, between middleware) *place {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	inner := registry.New(registry.Logger(noLog))
	server, direct := serveHTTP(t, between(inner)), serveHTTP(t, inner)
	host := strings.TrimPrefix(server.URL, "http://")
	return &place{"oci://" + host + "/org/m:v1", func(t testing.TB, from string) {
		entries, err := os.ReadDir(from)
		require.NoError(t, err)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		orasPush(t, strings.TrimPrefix(direct.URL, "http://")+"/org/m", from, ocispec.MediaTypeImageLayer, names...)
	}}
}

// orasPush pushes files and folders of dir as an artifact with the tag v1.
func orasPush(t testing.TB, repository, dir, mediaType string, names ...string) {
	t.Helper()
	store, err := file.New(dir)
	require.NoError(t, err)
	defer store.Close()
	var layers []ocispec.Descriptor
	for _, name := range names {
		layer, err := store.Add(t.Context(), name, mediaType, "")
		require.NoError(t, err)
		layers = append(layers, layer)
	}
	manifest, err := oras.PackManifest(t.Context(), store, oras.PackManifestVersion1_1, "application/vnd.unknown.artifact.v1", oras.PackManifestOptions{Layers: layers})
	require.NoError(t, err)
	require.NoError(t, store.Tag(t.Context(), manifest, "v1"))
	to, err := remote.NewRepository(repository)
	require.NoError(t, err)
	to.PlainHTTP = true
	_, err = oras.Copy(t.Context(), store, "v1", to, "v1", oras.DefaultCopyOptions)
	require.NoError(t, err)
}

// Artifacts with another media type are pulled; packed folders are refused with a reason.
func TestPullOfOrasArtifacts(t *testing.T) {
	to := remotetest.StartOwner(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	p := orasPlace(t, func(h http.Handler) http.Handler { return h })
	repository := strings.TrimSuffix(strings.TrimPrefix(p.address, "oci://"), ":v1")
	dir := folderOf(t, 4, false)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "README.md"), []byte("# m"), 0o600))
	for _, mediaType := range []string{"application/octet-stream", "application/vnd.example.weights"} {
		orasPush(t, repository, dir, mediaType, "README.md", "model.safetensors")
		_, err := newMirror(t, mirror.Options{Source: p.address, Name: "m", Owner: target, Device: dev}).Pull(t.Context())
		require.NoError(t, err)
		requireModel(t, target, "m", filepath.Join(dir, "model.safetensors"))
	}
	packed := t.TempDir()
	require.NoError(t, os.Rename(dir, filepath.Join(packed, "m.safetensors")))
	orasPush(t, repository, packed, "", "m.safetensors")
	_, err := newMirror(t, mirror.Options{Source: p.address, Name: "packed", Owner: target, Device: dev}).Pull(t.Context())
	require.ErrorIs(t, err, mirror.ErrUnsupported)
	require.ErrorContains(t, err, "folder")
}

package placestest_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/module"
)

// place is a server or folder that stores a model to be mirrored.
type place struct {
	address string
	// put replaces the model with the files of a folder.
	put func(t testing.TB, dir string)
}

// middleware wraps the handler of a server and can change its requests and responses.
type middleware func(http.Handler) http.Handler

func honest(h http.Handler) http.Handler { return h }

// serveHTTP serves a handler until the test ends.
func serveHTTP(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server
}

// folderOf returns a folder with a model, in one file or in shards.
func folderOf(t *testing.T, seed uint64, sharded bool) string {
	t.Helper()
	dev := remotetest.OpenHost(t)
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 7, Bytes: 3 << 20, Seed: seed})
	require.NoError(t, err)
	defer sd.Close()
	first, _ := sd.Get(sd.Names()[0])
	require.NoError(t, sd.Set("tied", first.Alias()))
	dir := t.TempDir()
	if sharded {
		require.NoError(t, module.SaveSharded(t.Context(), dir, sd, module.ShardOptions{ShardBytes: 1 << 20}))
		return dir
	}
	require.NoError(t, module.Save(t.Context(), filepath.Join(dir, "model.safetensors"), sd, module.SaveOptions{}))
	return dir
}

// requireModel compares the newest version of a name at an owner with a model on disk.
func requireModel(t *testing.T, client *endpoint.Client, name, dir string) {
	t.Helper()
	want, err := module.Load(t.Context(), remotetest.OpenHost(t), dir, module.LoadOptions{})
	require.NoError(t, err)
	defer want.Close()
	digests, err := module.Digests(t.Context(), want, 0)
	require.NoError(t, err)
	require.Equal(t, digests, digestsOf(t, client, name))
	h, err := client.Acquire(t.Context(), name, endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer h.Close()
	require.Equal(t, want.Aliases(), h.StateDict().Aliases())
	require.Equal(t, want.Metadata, h.StateDict().Metadata)
}

// filesIn returns the contents of the files of a folder by name.
func filesIn(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	out := map[string][]byte{}
	for _, e := range entries {
		out[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
	}
	return out
}

func sha256Hex(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// folderPlace returns a folder on this host.
func folderPlace(t *testing.T) *place {
	dir := filepath.Join(t.TempDir(), "m")
	return &place{"file://" + dir, func(t testing.TB, from string) {
		require.NoError(t, os.RemoveAll(dir))
		require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
	}}
}

// bucketPlace returns a folder in a bucket of an S3 server.
func bucketPlace(t testing.TB, between middleware) *place {
	backend := s3mem.New()
	require.NoError(t, backend.CreateBucket("models"))
	inner := gofakes3.New(backend).Server()
	server := serveHTTP(t, between(inner))
	t.Setenv("AWS_ENDPOINT_URL_S3", server.URL)
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_REGION", "us-east-1")
	return &place{"s3://models/org/m", func(t testing.TB, from string) { putObjects(t, inner, "/models/org/m/", from) }}
}

// putObjects stores the files of a folder in a bucket.
func putObjects(t testing.TB, server http.Handler, prefix, from string) {
	t.Helper()
	for name, data := range filesIn(t, from) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPut, prefix+name, bytes.NewReader(data))
		r.Header.Set("Content-Length", strconv.Itoa(len(data))) // the server requires it
		server.ServeHTTP(w, r)
		require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	}
}

// registryPlace returns a repository of an OCI registry, in the format of ModelPack or Docker.
func registryPlace(t testing.TB, docker bool, between middleware) *place {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	inner := registry.New(registry.Logger(noLog))
	server := serveHTTP(t, between(inner))
	host := strings.TrimPrefix(server.URL, "http://")
	push := func(t testing.TB, method, url string, contentType string, data []byte) {
		r := httptest.NewRequest(method, url, bytes.NewReader(data))
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		inner.ServeHTTP(w, r)
		require.Equal(t, http.StatusCreated, w.Code, w.Body.String())
	}
	return &place{"oci://" + host + "/org/m:v1", func(t testing.TB, from string) {
		type descriptor struct {
			MediaType   string            `json:"mediaType"`
			Digest      string            `json:"digest"`
			Size        int               `json:"size"`
			Annotations map[string]string `json:"annotations,omitempty"`
		}
		blob := func(mediaType, name string, data []byte) descriptor {
			digest := "sha256:" + sha256Hex(data)
			push(t, http.MethodPost, "/v2/org/m/blobs/uploads/?digest="+digest, "application/octet-stream", data)
			d := descriptor{MediaType: mediaType, Digest: digest, Size: len(data)}
			if name != "" {
				d.Annotations = map[string]string{"org.cncf.model.filepath": name}
			}
			return d
		}
		manifest := map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json"}
		if docker {
			manifest["config"] = blob("application/vnd.docker.ai.model.config.v0.1+json", "", []byte("{}"))
		} else {
			manifest["artifactType"] = "application/vnd.cncf.model.manifest.v1+json"
			manifest["config"] = blob("application/vnd.cncf.model.config.v1+json", "", []byte("{}"))
		}
		layers := []descriptor{}
		for name, data := range filesIn(t, from) {
			switch {
			case docker:
				layers = append(layers, blob("application/vnd.docker.ai.safetensors", "", data))
			case strings.HasSuffix(name, ".json"):
				layers = append(layers, blob("application/vnd.cncf.model.weight.config.v1.raw", name, data))
			default:
				layers = append(layers, blob("application/vnd.cncf.model.weight.v1.raw", name, data))
			}
		}
		layers = append(layers, blob("application/vnd.cncf.model.doc.v1.raw", "README.md", []byte("# m")))
		manifest["layers"] = layers
		text, err := json.Marshal(manifest)
		require.NoError(t, err)
		push(t, http.MethodPut, "/v2/org/m/manifests/v1", "application/vnd.oci.image.manifest.v1+json", text)
	}}
}

// hubServer implements the parts of the Hugging Face hub that a client uses: a list of files at a commit, and signed
// redirects to another host for large files. That host must not receive the token.
type hubServer struct {
	t      *testing.T
	cdn    *httptest.Server
	mu     sync.Mutex
	files  map[string][]byte
	commit string
	folder string // the files are in this folder, with a slash at its end; empty for the root
	asked  []string
}

const hubToken = "hf_secret"

func hubPlace(t *testing.T, between middleware) (*place, *hubServer) {
	h := &hubServer{t: t}
	h.cdn = serveHTTP(t, between(http.HandlerFunc(h.serveBytes)))
	server := serveHTTP(t, h)
	t.Setenv("HF_ENDPOINT", server.URL)
	t.Setenv("HF_TOKEN", hubToken)
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("HF_HUB_CACHE", "")
	t.Setenv("HF_HUB_OFFLINE", "")
	return &place{"hf://org/m", func(t testing.TB, from string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.files = filesIn(t, from)
		h.commit = sha256Hex([]byte(from))[:40]
	}}, h
}

// ServeHTTP implements http.Handler.
func (h *hubServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, r.URL.Path)
	if r.Header.Get("Authorization") != "Bearer "+hubToken {
		http.Error(w, `{"error":"Invalid credentials"}`, http.StatusUnauthorized)
		return
	}
	switch {
	case r.URL.Path == "/api/models/org/m/revision/main" && r.URL.RawQuery == "blobs=true":
		type lfs struct {
			SHA256 string `json:"sha256"`
			Size   int    `json:"size"`
		}
		type sibling struct {
			Name string `json:"rfilename"`
			Size int    `json:"size"`
			Blob string `json:"blobId"`
			LFS  *lfs   `json:"lfs,omitempty"`
		}
		list := []sibling{{Name: "README.md", Size: 3, Blob: strings.Repeat("0", 40)}, {Name: "onnx/model.onnx", Size: 3, Blob: strings.Repeat("1", 40)}}
		for name, data := range h.files {
			s := sibling{Name: h.folder + name, Size: len(data), Blob: sha256Hex(data)[:40]}
			if strings.HasSuffix(name, ".safetensors") {
				s.LFS = &lfs{sha256Hex(data), len(data)}
			}
			list = append(list, s)
		}
		if h.folder != "" {
			list = append(list, sibling{Name: "model.safetensors", Size: 8, Blob: strings.Repeat("2", 40)}) // another model
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"id": "org/m", "sha": h.commit, "siblings": list})
	case strings.HasPrefix(r.URL.Path, "/org/m/resolve/"+h.commit+"/"+h.folder):
		name := path.Base(r.URL.Path)
		if !strings.HasSuffix(name, ".safetensors") {
			http.ServeContent(w, r, name, zeroTime, bytes.NewReader(h.files[name]))
			return
		}
		http.Redirect(w, r, h.cdn.URL+"/"+sha256Hex(h.files[name])+"?signature="+url.QueryEscape("s/1"), http.StatusFound)
	default:
		http.Error(w, `{"error":"Repository not found"}`, http.StatusNotFound)
	}
}

// serveBytes serves the storage of the hub.
func (h *hubServer) serveBytes(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "" {
		h.t.Error("the hub's token was sent to another host")
	}
	if r.URL.Query().Get("signature") != "s/1" {
		http.Error(w, "signature", http.StatusForbidden)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, data := range h.files {
		if "/"+sha256Hex(data) == r.URL.Path {
			w.Header().Set("ETag", `"`+sha256Hex(data)+`"`)
			http.ServeContent(w, r, "", zeroTime, bytes.NewReader(data))
			return
		}
	}
	http.Error(w, fmt.Sprintf("no %s", r.URL.Path), http.StatusNotFound)
}

package mirror_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/mirrorgate"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestMain(m *testing.M) {
	remotetest.Main(m, func() []gateway.Component { return []gateway.Component{&models.Component{}, mirrorgate.New()} })
}

// modelFile writes a file with generated tensors, one of them bfloat16 and two tied, and returns its path.
func modelFile(t testing.TB, seed int64) string {
	t.Helper()
	dev := remotetest.OpenHost(t)
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 6, Bytes: 3 << 20, Seed: uint64(seed)})
	require.NoError(t, err)
	defer sd.Close()
	norm, err := tensor.FromSlice(dev, tensor.Shape{3}, []tensor.BF16{1, 2, tensor.BF16(seed)})
	require.NoError(t, err)
	require.NoError(t, sd.Set("norm/a b", norm))
	tied, _ := sd.Get("norm/a b")
	require.NoError(t, sd.Set("tied", tied.Alias()))
	empty, err := tensor.Zeros(dev, tensor.Float32, tensor.Shape{0, 4})
	require.NoError(t, err)
	require.NoError(t, sd.Set("empty", empty))
	sd.Metadata = map[string]string{"format": "pt", "step": fmt.Sprint(seed)}
	path := filepath.Join(t.TempDir(), fmt.Sprintf("model%d.safetensors", seed))
	require.NoError(t, module.Save(t.Context(), path, sd, module.SaveOptions{}))
	return path
}

// requireSame compares the newest version of a name at an owner with a file.
func requireSame(t testing.TB, client *endpoint.Client, name, path string) {
	t.Helper()
	h, err := client.Acquire(t.Context(), name, endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer h.Close()
	saved := filepath.Join(t.TempDir(), "mirrored.safetensors")
	require.NoError(t, module.Save(t.Context(), saved, h.StateDict(), module.SaveOptions{}))
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	got, err := os.ReadFile(saved)
	require.NoError(t, err)
	require.Equal(t, want, got, "the file that the version makes is the source's, byte for byte")
}

// events collects the events of a mirror.
type events struct {
	mu   sync.Mutex
	list []mirror.Event
}

func (e *events) add(one mirror.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, one)
}

// of returns the events of a kind received so far.
func (e *events) of(kind string) (out []mirror.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.list {
		if one.Kind == kind {
			out = append(out, one)
		}
	}
	return out
}

// newMirror returns a mirror that is closed when the test ends.
func newMirror(t testing.TB, options mirror.Options) *mirror.Mirror {
	t.Helper()
	m, err := mirror.New(options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// follow runs Follow until stop is called. stop returns the result of Follow.
func follow(t testing.TB, m *mirror.Mirror) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Follow(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = stop() })
	return stop
}

// modelDigest returns the BLAKE3 digest of the newest version of a model at a gateway. Slashes of the name are escaped.
func modelDigest(t testing.TB, gw *remotetest.Gateway, name string) modelwire.Digest {
	t.Helper()
	resp, text := gw.Get(t, "/v1/models/"+name+"/manifest?digests=blake3")
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", text)
	m, err := modelwire.ParseManifest(text, modelwire.Limits{})
	require.NoError(t, err)
	return m.Digest()
}

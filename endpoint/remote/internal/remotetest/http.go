package remotetest

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Attached waits until the gateway is attached to its owner.
func (g *Gateway) Attached(t testing.TB) {
	t.Helper()
	Eventually(t, func() error {
		resp, err := http.Get(g.HTTP() + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(resp.Body)
			return fmt.Errorf("not ready: %s", text)
		}
		return nil
	})
}

// Get fetches a path. fields alternates header names and values.
func (g *Gateway) Get(t testing.TB, path string, fields ...string) (*http.Response, []byte) {
	t.Helper()
	return g.Do(t, http.MethodGet, path, nil, fields...)
}

// Do sends a request and returns the answer with its body. fields alternates header names and values.
func (g *Gateway) Do(t testing.TB, method, path string, body io.Reader, fields ...string) (*http.Response, []byte) {
	t.Helper()
	r, err := http.NewRequest(method, g.HTTP()+path, body)
	require.NoError(t, err)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, text
}

// TiedFile writes a model with two names for one tensor, and returns its path and its bytes.
func TiedFile(t testing.TB) (string, []byte) {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	sd := module.NewStateDict()
	defer sd.Close()
	embed, err := tensor.FromSlice(dev, tensor.Shape{3, 2}, []float32{1, 2, 3, 4, 5, 6})
	require.NoError(t, err)
	require.NoError(t, sd.Set("wte/weight", embed))
	require.NoError(t, sd.Set("lm_head", embed.Alias()))
	norm, err := tensor.FromSlice(dev, tensor.Shape{2}, []tensor.BF16{tensor.NewBF16(1), tensor.NewBF16(2)})
	require.NoError(t, err)
	require.NoError(t, sd.Set("norm", norm))
	sd.Metadata = map[string]string{"format": "pt"}
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, module.Save(t.Context(), path, sd, module.SaveOptions{}))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return path, data
}

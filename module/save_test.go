package module_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// save writes a state dict and opens the file.
func save(t *testing.T, sd *module.StateDict, opts module.SaveOptions) *safetensors.Model {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.safetensors")
	require.NoError(t, module.Save(t.Context(), path, sd, opts))
	m, err := safetensors.Open(path)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	return m
}

// names are the tensors that a file holds, in its order.
func names(m *safetensors.Model) []string {
	var all []string
	for _, x := range m.Tensors {
		all = append(all, x.Name)
	}
	return all
}

func TestSaveTied(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	sd := module.NewStateDict()
	set(t, dev, sd, "wte", 1, 2, 3)
	set(t, dev, sd, "b", 4)
	tie(t, sd, "lm_head", "wte")
	tie(t, sd, "zte", "wte")
	defer sd.Close()
	m := save(t, sd, module.SaveOptions{Metadata: map[string]string{"format": "pt"}})
	require.Equal(t, []string{"b", "lm_head"}, names(m))
	require.Equal(t, map[string]string{"format": "pt", safetensors.TiedKey: `{"wte":"lm_head","zte":"lm_head"}`}, m.Metadata)
	require.Nil(t, sd.Metadata, "the state dict is not changed")

	back, err := module.Load(t.Context(), dev, m.Path, module.LoadOptions{})
	require.NoError(t, err)
	defer back.Close()
	require.Equal(t, []string{"b", "lm_head", "wte", "zte"}, back.Names())
	require.Equal(t, [][]string{{"lm_head", "wte", "zte"}}, back.Aliases())
	require.Equal(t, []float32{1, 2, 3}, values(t, back, "zte"))
}

func TestSaveKeepsTheNameThatTheFileKept(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	path := filepath.Join(t.TempDir(), "m")
	record := map[string]string{safetensors.TiedKey: `{"a":"z"}`}
	writeModel(t, path, record, map[string]int64{"z": 8})
	sd, err := module.Load(t.Context(), dev, path, module.LoadOptions{})
	require.NoError(t, err)
	defer sd.Close()
	m := save(t, sd, module.SaveOptions{})
	require.Equal(t, []string{"z"}, names(m))
	require.Equal(t, record, m.Metadata)
}

func TestSaveDoesNotOverrideMetadata(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	sd := module.NewStateDict()
	set(t, dev, sd, "a", 1)
	tie(t, sd, "b", "a")
	tie(t, sd, "c", "a")
	sd.Metadata = map[string]string{"b": "the user's"}
	defer sd.Close()
	m := save(t, sd, module.SaveOptions{})
	require.Equal(t, []string{"a"}, names(m))
	require.Equal(t, map[string]string{"b": "the user's", safetensors.TiedKey: `{"b":"a","c":"a"}`}, m.Metadata)
	m = save(t, sd, module.SaveOptions{PythonTies: true})
	require.Equal(t, []string{"a", "b"}, names(m))
	require.Equal(t, map[string]string{"b": "the user's", "c": "a", safetensors.TiedKey: `{"c":"a"}`}, m.Metadata)
}

func TestSaveStrided(t *testing.T) {
	drivertest.Leaks(t)
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		x, err := tensor.FromSlice(dev, tensor.Shape{2, 3}, []float32{1, 2, 3, 4, 5, 6})
		require.NoError(t, err)
		turned, err := x.Transpose(0, 1)
		require.NoError(t, err)
		sd := module.NewStateDict()
		require.NoError(t, sd.Set("x", x))
		require.NoError(t, sd.Set("turned", turned))
		m := save(t, sd, module.SaveOptions{})
		want, err := module.Digests(t.Context(), sd, 2)
		require.NoError(t, err)
		require.NoError(t, sd.Close())

		back, err := module.Load(t.Context(), dev, m.Path, module.LoadOptions{})
		require.NoError(t, err)
		require.Equal(t, []float32{1, 4, 2, 5, 3, 6}, values(t, back, "turned"))
		got, err := module.Digests(t.Context(), back, 0)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.NoError(t, back.Close())
	})
}

func TestSaveFailures(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "m")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 2, Bytes: 8 << 20})
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	err = module.Save(ctx, path, sd, module.SaveOptions{Progress: func(done, total int64) {
		if done > 0 {
			cancel(stop)
		}
		require.LessOrEqual(t, done, total/2)
	}})
	require.ErrorIs(t, err, stop)
	require.ErrorContains(t, err, path)

	x, err := tensor.Zeros(dev, tensor.Complex128, tensor.Shape{1})
	require.NoError(t, err)
	require.NoError(t, sd.Set("z", x))
	err = module.Save(t.Context(), path, sd, module.SaveOptions{})
	require.ErrorIs(t, err, safetensors.ErrDType)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, `"z"`)
	require.NoError(t, sd.Close())
	require.Error(t, module.Save(t.Context(), filepath.Join(dir, "closed"), sd, module.SaveOptions{}))
	old, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(old))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestDigests(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	sd := module.NewStateDict()
	set(t, dev, sd, "w", 1)
	tie(t, sd, "tied", "w")
	got, err := module.Digests(t.Context(), sd, 4)
	require.NoError(t, err)
	want := module.Digest(sha256.Sum256([]byte{0, 0, 0x80, 0x3f}))
	require.Equal(t, map[string]module.Digest{"w": want, "tied": want}, got)
	require.Len(t, want.String(), 64)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = module.Digests(ctx, sd, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, sd.Close())
	_, err = module.Digests(t.Context(), sd, 2)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, err, `tensor "w"`)
	got, err = module.Digests(t.Context(), module.NewStateDict(), 1)
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestSynthetic(t *testing.T) {
	drivertest.Leaks(t)
	path := filepath.Join(t.TempDir(), "m")
	s := module.Synthetic{Tensors: 11, Bytes: 5 << 20, Seed: 7}
	require.NoError(t, module.SynthesizeFile(path, s))
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		made, err := module.Synthesize(dev, s)
		require.NoError(t, err)
		loaded, err := module.Load(t.Context(), dev, path, module.LoadOptions{})
		require.NoError(t, err)
		a, _ := made.Manifest()
		b, _ := loaded.Manifest()
		require.Equal(t, a, b)
		want, err := module.Digests(t.Context(), made, 2)
		require.NoError(t, err)
		got, err := module.Digests(t.Context(), loaded, 2)
		require.NoError(t, err)
		require.Equal(t, want, got)
		// Computed by an independent implementation.
		require.Equal(t, "9c3931463fefe89acc26a3319d72507cb8d7b1990fd867a271127f61b68cae4f", want["layers.00000000.weight"].String())
		for _, v := range values(t, made, "layers.00000003.weight")[:100] {
			require.GreaterOrEqual(t, v, float32(-0.5))
			require.Less(t, v, float32(0.5))
		}
		require.NoError(t, made.Close())
		require.NoError(t, loaded.Close())
	})
	for _, bad := range []module.Synthetic{{}, {Tensors: -1}, {Tensors: 1, Bytes: -1}, {Tensors: 1, Bytes: 1 << 60}} {
		require.ErrorIs(t, module.SynthesizeFile(path, bad), driver.ErrInvalid)
	}
}

func TestSaveSilero(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	path := testData(t, "silero_vad_16k.safetensors")
	sd, err := module.Load(t.Context(), dev, path, module.LoadOptions{})
	require.NoError(t, err)
	defer sd.Close()
	m := save(t, sd, module.SaveOptions{})
	back, err := module.Load(t.Context(), dev, m.Path, module.LoadOptions{})
	require.NoError(t, err)
	defer back.Close()
	want, err := module.Digests(t.Context(), sd, 0)
	require.NoError(t, err)
	got, err := module.Digests(t.Context(), back, 0)
	require.NoError(t, err)
	require.Equal(t, want, got)
	a, _ := sd.Manifest()
	b, _ := back.Manifest()
	require.NoError(t, module.Compare(a, b))
}

package module_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// tiedModel returns the bytes of a small model whose head is tied to its embedding. The embedding is stored, under the
// first name.
func tiedModel(t *testing.T, dev driver.Device) []byte {
	t.Helper()
	sd, err := module.New(dev, []module.NamedSpec{
		{Name: "embed", DType: tensor.Float32, Shape: tensor.Shape{3, 100}},
		{Name: "layer.bias", DType: tensor.Int32, Shape: tensor.Shape{5}},
		{Name: "layer.weight", DType: tensor.Float32, Shape: tensor.Shape{40_000}},
		{Name: "head", DType: tensor.Float32, Shape: tensor.Shape{3, 100}, TiedTo: "embed"},
	})
	require.NoError(t, err)
	defer sd.Close()
	sd.Metadata = map[string]string{"step": "3"}
	for i, name := range []string{"embed", "layer.bias", "layer.weight"} {
		x, _ := sd.Get(name)
		require.NoError(t, x.Fill(float64(i)+1.5))
	}
	data, err := module.Encode(t.Context(), sd, module.SaveOptions{})
	require.NoError(t, err)
	return data
}

func TestEncodeAndDecode(t *testing.T) {
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		data := tiedModel(t, dev)
		sd, err := module.Decode(t.Context(), dev, data, module.LoadOptions{})
		require.NoError(t, err)
		require.Equal(t, [][]string{{"embed", "head"}}, sd.Aliases())
		require.Equal(t, float32(3.5), values(t, sd, "layer.weight")[39_999])
		again, err := module.Encode(t.Context(), sd, module.SaveOptions{})
		require.NoError(t, err)
		require.Equal(t, data, again)
		path := filepath.Join(t.TempDir(), "m.safetensors")
		require.NoError(t, module.Save(t.Context(), path, sd, module.SaveOptions{}))
		require.NoError(t, sd.Close())
		file, err := module.Load(t.Context(), dev, path, module.LoadOptions{})
		require.NoError(t, err)
		again, err = module.Encode(t.Context(), file, module.SaveOptions{})
		require.NoError(t, err)
		require.Equal(t, data, again)
		require.NoError(t, file.Close())

		_, err = module.Decode(t.Context(), dev, data[:len(data)-1], module.LoadOptions{})
		require.ErrorIs(t, err, safetensors.ErrTruncated)
		_, err = module.Decode(t.Context(), dev, nil, module.LoadOptions{})
		require.ErrorIs(t, err, safetensors.ErrTruncated)
		_, err = module.LoadFrom(t.Context(), dev, brokenReader{bytes.NewReader(data), int64(len(data) - 10)}, int64(len(data)), module.LoadOptions{})
		require.ErrorIs(t, err, errBroken)
	})
}

var errBroken = errors.New("broken")

// brokenReader fails from an offset on.
type brokenReader struct {
	*bytes.Reader
	good int64
}

func (r brokenReader) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > r.good {
		return 0, errBroken
	}
	return r.Reader.ReadAt(p, off)
}

func TestLoadOnly(t *testing.T) {
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		data := tiedModel(t, dev)
		load := func(names ...string) *module.StateDict {
			var total int64
			sd, err := module.Decode(t.Context(), dev, data, module.LoadOptions{
				Only:     func(name string) bool { return strings.Contains(strings.Join(names, " ")+" ", name+" ") },
				Progress: func(_, n int64) { total = n },
			})
			require.NoError(t, err)
			require.Equal(t, sd.Bytes(), total, "nothing else is read")
			t.Cleanup(func() { require.NoError(t, sd.Close()) })
			return sd
		}
		sd := load("layer.bias")
		require.Equal(t, []string{"layer.bias"}, sd.Names())
		require.Equal(t, map[string]string{"step": "3"}, sd.Metadata, "nothing is tied")
		require.Equal(t, float32(2), values(t, sd, "layer.bias")[4])
		sd = load("head")
		require.Equal(t, []string{"head"}, sd.Names(), "the bytes are under the other name in the file")
		require.Equal(t, float32(1.5), values(t, sd, "head")[299])
		sd = load("head", "embed")
		require.Equal(t, [][]string{{"embed", "head"}}, sd.Aliases())
		require.Contains(t, sd.Metadata, safetensors.TiedKey)
		require.Zero(t, load("nothing").Len())
	})
}

func TestLoadAs(t *testing.T) {
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		data := tiedModel(t, dev)
		half := func(_ string, dt tensor.DType) tensor.DType {
			if dt == tensor.Float32 {
				return tensor.BFloat16
			}
			return dt
		}
		var done, total int64
		sd, err := module.Decode(t.Context(), dev, data, module.LoadOptions{DType: half, Progress: func(d, n int64) { done, total = d, n }})
		require.NoError(t, err)
		require.Equal(t, total, done)
		require.EqualValues(t, 4*(300+5+40_000), total)
		require.Equal(t, [][]string{{"embed", "head"}}, sd.Aliases())
		require.EqualValues(t, 2*300+4*5+2*40_000, sd.Bytes())
		for name, want := range map[string]float32{"embed": 1.5, "head": 1.5, "layer.bias": 2, "layer.weight": 3.5} {
			for _, v := range values(t, sd, name) {
				require.Equal(t, want, v, name)
			}
		}
		require.NoError(t, sd.Close())

		none := func(string, tensor.DType) tensor.DType { return tensor.DType(200) }
		_, err = module.Decode(t.Context(), dev, data, module.LoadOptions{DType: none})
		require.ErrorIs(t, err, tensor.ErrDType)
		require.ErrorContains(t, err, `"embed"`)
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err = module.Decode(ctx, dev, data, module.LoadOptions{DType: half, Progress: func(done, _ int64) {
			if done > 10_000 {
				cancel(errBroken)
			}
		}})
		require.ErrorIs(t, err, errBroken)
	})
}

func TestSeveralDevices(t *testing.T) {
	drivertest.Leaks(t)
	one, other := openHost(t), &plainDevice{Device: openHost(t)}
	data := tiedModel(t, one)
	sd, err := module.Decode(t.Context(), one, data, module.LoadOptions{Device: func(name string) driver.Device {
		if strings.HasPrefix(name, "layer.") {
			return other
		}
		return nil
	}})
	require.NoError(t, err)
	defer sd.Close()
	require.Len(t, sd.Storages(), 2)
	for name, x := range sd.All() {
		require.Equal(t, strings.HasPrefix(name, "layer."), x.Device() == driver.Device(other), name)
	}
	require.Equal(t, [][]string{{"embed", "head"}}, sd.Aliases())
	require.Equal(t, float32(3.5), values(t, sd, "layer.weight")[39_999])

	made, err := module.New(one, []module.NamedSpec{
		{Name: "a", DType: tensor.Int8, Shape: tensor.Shape{1}}, {Name: "b", DType: tensor.Int8, Shape: tensor.Shape{1}, Device: other},
		{Name: "c", DType: tensor.Int8, Shape: tensor.Shape{1}, Device: one},
	})
	require.NoError(t, err)
	defer made.Close()
	require.Equal(t, []string{"a", "b", "c"}, made.Names())
	require.Len(t, made.Storages(), 2)
	_, err = module.New(one, []module.NamedSpec{
		{Name: "a", DType: tensor.Int8, Shape: tensor.Shape{1}}, {Name: "b", DType: tensor.Int8, Shape: tensor.Shape{1}, Device: other, TiedTo: "a"},
	})
	require.ErrorIs(t, err, module.ErrManifest)
	_, err = module.New(one, []module.NamedSpec{
		{Name: "a", DType: tensor.Int8, Shape: tensor.Shape{1}}, {Name: "a", DType: tensor.Int8, Shape: tensor.Shape{1}, Device: other},
	})
	require.ErrorIs(t, err, module.ErrDuplicateName)
}

// A model is passed as bytes. Only its encoder is loaded, with elements of half the size.
func ExampleDecode() {
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	ctx := context.Background()
	sd, err := module.New(dev, []module.NamedSpec{
		{Name: "encoder.weight", DType: tensor.Float32, Shape: tensor.Shape{2, 2}},
		{Name: "decoder.weight", DType: tensor.Float32, Shape: tensor.Shape{2, 2}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer sd.Close()
	data, err := module.Encode(ctx, sd, module.SaveOptions{})
	if err != nil {
		log.Fatal(err)
	}
	encoder, err := module.Decode(ctx, dev, data, module.LoadOptions{
		Only:  func(name string) bool { return strings.HasPrefix(name, "encoder.") },
		DType: func(string, tensor.DType) tensor.DType { return tensor.BFloat16 },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer encoder.Close()
	for name, x := range encoder.All() {
		fmt.Println(name, x.DType(), x.Shape())
	}
	// Output: encoder.weight bfloat16 [2, 2]
}

// eofReader returns io.EOF together with the last bytes, as io.ReaderAt allows.
type eofReader struct{ *bytes.Reader }

func (r eofReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.Reader.ReadAt(p, off)
	if err == nil && off+int64(n) == r.Size() {
		err = io.EOF
	}
	return n, err
}

// A complete read with io.EOF is not a truncation.
func TestLoadFullReadWithEOF(t *testing.T) {
	bothPaths(t, func(t *testing.T, dev driver.Device) {
		sd := module.NewStateDict()
		defer sd.Close()
		set(t, dev, sd, "a", 1, 2, 3)
		set(t, dev, sd, "b", 4)
		data, err := module.Encode(t.Context(), sd, module.SaveOptions{})
		require.NoError(t, err)
		got, err := module.LoadFrom(t.Context(), dev, eofReader{bytes.NewReader(data)}, int64(len(data)), module.LoadOptions{})
		require.NoError(t, err)
		defer got.Close()
		require.Equal(t, []float32{4}, values(t, got, "b"))
		_, err = module.LoadFrom(t.Context(), dev, eofReader{bytes.NewReader(data[:len(data)-1])}, int64(len(data)), module.LoadOptions{})
		require.ErrorIs(t, err, safetensors.ErrTruncated)
	})
}

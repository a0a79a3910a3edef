package module_test

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// storagesOf returns new storages of 64 bytes with their descriptions.
func storagesOf(t *testing.T, dev driver.Device, n int) ([]*tensor.Storage, []module.StorageSpec) {
	t.Helper()
	storages, specs := make([]*tensor.Storage, n), make([]module.StorageSpec, n)
	for i := range storages {
		mem, err := dev.Alloc(64)
		require.NoError(t, err)
		storages[i] = tensor.NewStorage(mem)
		t.Cleanup(func() { _ = storages[i].Close() })
		specs[i] = module.StorageSpec{Bytes: 64, Device: dev.Info().UUID, DeviceType: dev.Info().Type}
	}
	return storages, specs
}

// Tensors of a manifest are created on first use, and only once.
func TestTensorsAreCreatedOnFirstUse(t *testing.T) {
	drivertest.Leaks(t)
	storages, specs := storagesOf(t, openHost(t), 2)
	m := &module.Manifest{Storages: specs, Tensors: []module.TensorSpec{
		{Name: "a", Spec: tensor.Spec{DType: tensor.Int32, Shape: tensor.Shape{4}, ByteOffset: 1}},
		{Name: "b", Storage: 1, Spec: tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{2, 2}, Strides: tensor.Strides{1, 2}}},
		{Name: "c", Spec: tensor.Spec{DType: tensor.Int8, Shape: tensor.Shape{2, 2}, Strides: tensor.Strides{2, 1}}},
	}}
	sd, err := module.FromManifest(m, storages)
	require.NoError(t, err)
	require.EqualValues(t, 2, storages[0].Refs(), "the state dict holds each storage once, and there is no tensor yet")
	require.EqualValues(t, 2, storages[1].Refs())
	for i, name := range sd.Names() {
		x, _ := sd.Get(name)
		again, _ := sd.Get(name)
		require.Same(t, x, again)
		require.True(t, x.Spec().Equal(m.Tensors[i].Spec))
		require.Same(t, storages[m.Tensors[i].Storage], x.Storage())
	}
	require.EqualValues(t, 4, storages[0].Refs())
	b, _ := sd.Get("b")
	c, _ := sd.Get("c")
	require.False(t, b.Contiguous())
	require.True(t, c.Contiguous())
	require.Nil(t, c.Spec().Strides)
	require.Equal(t, tensor.Strides{2, 1}, m.Tensors[2].Spec.Strides, "specs are borrowed, not changed")
	require.NoError(t, sd.Close())
	require.NoError(t, sd.Close())
	require.True(t, b.Closed())
	require.EqualValues(t, 1, storages[0].Refs())

	sd, err = module.FromManifest(m, storages)
	require.NoError(t, err)
	require.NoError(t, sd.Close())
	b, _ = sd.Get("b")
	require.True(t, b.Closed(), "what is created after the end is closed, and can be described")
	require.True(t, b.Spec().Equal(m.Tensors[1].Spec))
	require.EqualValues(t, 1, storages[1].Refs())

	require.NoError(t, storages[1].Close())
	_, err = module.FromManifest(m, storages)
	require.ErrorIs(t, err, os.ErrClosed)
	require.EqualValues(t, 1, storages[0].Refs(), "nothing is held after a refusal")
}

// Many goroutines get all tensors while the state dict is closed: each tensor is created once, and no reference is left.
func TestGetDuringClose(t *testing.T) {
	drivertest.Leaks(t)
	storages, specs := storagesOf(t, openHost(t), 1)
	m := &module.Manifest{Storages: specs, Tensors: make([]module.TensorSpec, 100)}
	for i := range m.Tensors {
		m.Tensors[i] = module.TensorSpec{Name: strconv.Itoa(i), Spec: tensor.Spec{DType: tensor.Int32, Shape: tensor.Shape{1}, ByteOffset: int64(i % 6 * 4)}}
	}
	for _, early := range []bool{false, true} {
		sd, err := module.FromManifest(m, storages)
		require.NoError(t, err)
		seen := make([][]*tensor.Tensor, 8)
		var all sync.WaitGroup
		for w := range seen {
			all.Go(func() {
				for _, x := range sd.All() {
					seen[w] = append(seen[w], x)
				}
			})
		}
		if !early {
			all.Wait()
			require.EqualValues(t, 1+1+100, storages[0].Refs())
		}
		require.NoError(t, sd.Close())
		all.Wait()
		for _, of := range seen {
			require.Equal(t, len(m.Tensors), len(of))
			for i := range of {
				require.Same(t, seen[0][i], of[i])
				require.True(t, of[i].Closed())
			}
		}
		require.EqualValues(t, 1, storages[0].Refs())
	}
}

// The tensors of a state dict live as long as it does, however they were added: no user can close them, and Alias and Take
// return tensors with a separate life.
func TestTensorsLiveAsLongAsTheirStateDict(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	make4 := func() *tensor.Tensor {
		x, err := tensor.FromSlice(dev, tensor.Shape{2, 2}, []int32{1, 2, 3, 4})
		require.NoError(t, err)
		return x
	}
	for name, create := range map[string]func() *module.StateDict{
		"set": func() *module.StateDict {
			sd := module.NewStateDict()
			require.NoError(t, sd.Set("w", make4()))
			return sd
		},
		"view": func() *module.StateDict { // of a tensor that is closed before the state dict
			sd, x := module.NewStateDict(), make4()
			v, err := x.Reshape(tensor.Shape{4})
			require.NoError(t, err)
			require.NoError(t, sd.Set("w", v))
			require.NoError(t, v.Close())
			require.NoError(t, x.Close())
			return sd
		},
		"manifest": func() *module.StateDict {
			from := module.NewStateDict()
			require.NoError(t, from.Set("w", make4()))
			defer from.Close()
			sd, err := module.FromManifest(from.Manifest())
			require.NoError(t, err)
			return sd
		},
		"alias": func() *module.StateDict {
			from := module.NewStateDict()
			require.NoError(t, from.Set("w", make4()))
			defer from.Close()
			return from.Alias()
		},
		"new": func() *module.StateDict {
			sd, err := module.New(dev, []module.NamedSpec{{Name: "w", DType: tensor.Int32, Shape: tensor.Shape{4}}})
			require.NoError(t, err)
			w, _ := sd.Get("w")
			require.NoError(t, w.FillFrom(bytes.NewReader([]byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0})))
			return sd
		},
	} {
		t.Run(name, func(t *testing.T) {
			sd := create()
			w, _ := sd.Get("w")
			require.NoError(t, w.Close())
			require.False(t, w.Closed(), "a user cannot close a tensor of a state dict")
			require.False(t, sd.Closed())
			row, err := w.Narrow(0, 0, 1)
			require.NoError(t, err)
			alias := row.Alias()
			require.NoError(t, sd.Close())
			for _, x := range []*tensor.Tensor{w, row} {
				_, err = x.ReadBytes()
				require.ErrorIs(t, err, os.ErrClosed)
			}
			got, err := alias.ReadBytes()
			require.NoError(t, err)
			require.Equal(t, byte(1), got[0])
			require.NoError(t, alias.Close())
			require.Zero(t, w.Storage().Refs())

			sd = create()
			w, _ = sd.Take("w")
			require.NoError(t, sd.Close())
			got, err = w.ReadBytes()
			require.NoError(t, err)
			require.Equal(t, []byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0}, got)
			require.NoError(t, w.Close())
			require.True(t, w.Closed())
			require.Zero(t, w.Storage().Refs())
		})
	}
}

package module_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestStateDict(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	sd := module.NewStateDict()
	set(t, dev, sd, "w", 1, 2)
	set(t, dev, sd, "a", 3)
	tie(t, sd, "head", "w")
	require.Equal(t, 3, sd.Len())
	require.Equal(t, []string{"w", "a", "head"}, sd.Names())
	var seen []string
	for name, x := range sd.All() {
		seen = append(seen, name+x.Shape().String())
	}
	require.Equal(t, []string{"w[2]", "a[1]", "head[2]"}, seen)
	for name := range sd.All() {
		require.Equal(t, "w", name)
		break
	}
	require.Len(t, sd.Storages(), 2)
	require.Equal(t, int64(12), sd.Bytes())
	_, ok := sd.Get("none")
	require.False(t, ok)

	sd.Metadata = map[string]string{"format": "pt"}
	c := sd.Alias()
	require.NoError(t, sd.Close())
	require.NoError(t, sd.Close())
	require.Equal(t, []float32{1, 2}, values(t, c, "head"))
	require.Equal(t, sd.Metadata, c.Metadata)
	require.Equal(t, [][]string{{"w", "head"}}, c.Aliases())
	require.NoError(t, c.Close())
	require.NoError(t, (*module.StateDict)(nil).Close())
}

func TestSetTakesTheTensor(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	sd := module.NewStateDict()
	defer sd.Close()
	set(t, dev, sd, "w", 1)
	for _, c := range []struct {
		name string
		want error
	}{{"w", module.ErrDuplicateName}, {"", module.ErrName}, {"\xff", module.ErrName}} {
		x, err := tensor.Zeros(dev, tensor.Int8, nil)
		require.NoError(t, err)
		require.ErrorIs(t, sd.Set(c.name, x), c.want)
		require.True(t, x.Closed())
	}
	require.Equal(t, 1, sd.Len())
}

func TestAliases(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	mem, err := dev.Alloc(4096)
	require.NoError(t, err)
	s := tensor.NewStorage(mem)
	sd := module.NewStateDict()
	add := func(name string, spec tensor.Spec) {
		x, err := tensor.New(s, spec)
		require.NoError(t, err)
		require.NoError(t, sd.Set(name, x))
	}
	six := tensor.Spec{DType: tensor.Float32, Shape: tensor.Shape{2, 3}}
	add("a", six)
	add("reshaped", tensor.Spec{DType: tensor.Float32, Shape: tensor.Shape{3, 2}})
	add("b", six)
	add("strided", tensor.Spec{DType: tensor.Float32, Shape: tensor.Shape{2, 3}, Strides: tensor.Strides{3, 1}})
	add("retyped", tensor.Spec{DType: tensor.Int32, Shape: tensor.Shape{2, 3}})
	add("part", tensor.Spec{DType: tensor.Float32, Shape: tensor.Shape{2}})
	add("reshaped too", tensor.Spec{DType: tensor.Float32, Shape: tensor.Shape{3, 2}})
	add("empty", tensor.Spec{DType: tensor.Float32, Shape: tensor.Shape{0}})
	add("empty too", tensor.Spec{DType: tensor.Float32, Shape: tensor.Shape{0}})
	require.NoError(t, s.Close())
	require.Equal(t, [][]string{{"a", "b", "strided"}, {"reshaped", "reshaped too"}}, sd.Aliases())
	require.Len(t, sd.Storages(), 1)
	require.NoError(t, sd.Close())
}

func TestManifestRoundTrip(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	sd := module.NewStateDict()
	set(t, dev, sd, "w", 1, 2, 3, 4)
	set(t, dev, sd, "b", 5)
	tie(t, sd, "head", "w")
	sd.Metadata = map[string]string{"k": "v"}
	m, storages := sd.Manifest()
	require.NoError(t, m.Validate())
	require.Equal(t, []uint32{0, 1, 0}, []uint32{m.Tensors[0].Storage, m.Tensors[1].Storage, m.Tensors[2].Storage})

	back, err := module.FromManifest(m, storages)
	require.NoError(t, err)
	require.NoError(t, sd.Close())
	require.Equal(t, []string{"w", "b", "head"}, back.Names())
	require.Equal(t, []float32{1, 2, 3, 4}, values(t, back, "head"))
	require.Equal(t, [][]string{{"w", "head"}}, back.Aliases())
	again, _ := back.Manifest()
	require.Equal(t, m, again)
	require.NoError(t, back.Close())
	for _, s := range storages {
		require.Zero(t, s.Refs())
	}
	_, err = module.FromManifest(m, storages)
	require.Error(t, err, "closed storages")
}

func TestHostileManifests(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	mem, err := dev.Alloc(1024)
	require.NoError(t, err)
	s := tensor.NewStorage(mem)
	defer s.Close()
	info := dev.Info()
	w := module.TensorSpec{Name: "w", Spec: tensor.Spec{DType: tensor.Float32, Shape: tensor.Shape{256}}}
	change := func(f func(*module.TensorSpec)) []module.TensorSpec {
		c := w
		f(&c)
		return []module.TensorSpec{w, c}
	}
	other := func(f func(*module.TensorSpec)) []module.TensorSpec {
		return change(func(c *module.TensorSpec) { c.Name = "evil"; f(c) })
	}
	for _, c := range []struct {
		name    string
		tensors []module.TensorSpec
		want    error
	}{
		{"name twice", []module.TensorSpec{w, w}, module.ErrDuplicateName},
		{"no name", change(func(c *module.TensorSpec) { c.Name = "" }), module.ErrName},
		{"name is not UTF-8", change(func(c *module.TensorSpec) { c.Name = "\xc0\x80" }), module.ErrName},
		{"storage that is not there", other(func(c *module.TensorSpec) { c.Storage = 1 }), module.ErrManifest},
		{"storage 2^32-1", other(func(c *module.TensorSpec) { c.Storage = 1<<32 - 1 }), module.ErrManifest},
		{"behind the end", other(func(c *module.TensorSpec) { c.ByteOffset = 4 }), tensor.ErrBounds},
		{"before the beginning", other(func(c *module.TensorSpec) { c.ByteOffset = -4 }), tensor.ErrBounds},
		{"offset near 2^63", other(func(c *module.TensorSpec) { c.ByteOffset = 1<<63 - 1 }), tensor.ErrBounds},
		{"too long", other(func(c *module.TensorSpec) { c.Shape = tensor.Shape{257} }), tensor.ErrBounds},
		{"strides reach out", other(func(c *module.TensorSpec) { c.Strides = tensor.Strides{2} }), tensor.ErrBounds},
		{"elements overflow", other(func(c *module.TensorSpec) { c.Shape = tensor.Shape{1 << 62, 4} }), tensor.ErrOverflow},
		{"bytes overflow", other(func(c *module.TensorSpec) { c.Shape = tensor.Shape{1 << 62} }), tensor.ErrOverflow},
		{"negative dimension", other(func(c *module.TensorSpec) { c.Shape = tensor.Shape{-1} }), tensor.ErrShape},
		{"negative stride", other(func(c *module.TensorSpec) { c.Strides = tensor.Strides{-1} }), tensor.ErrShape},
		{"too few strides", other(func(c *module.TensorSpec) { c.Strides = tensor.Strides{} }), tensor.ErrShape},
		{"rank 65", other(func(c *module.TensorSpec) { c.Shape = make(tensor.Shape, 65) }), tensor.ErrShape},
		{"unknown dtype", other(func(c *module.TensorSpec) { c.DType = 200 }), tensor.ErrDType},
		{"no dtype", other(func(c *module.TensorSpec) { c.DType = 0 }), tensor.ErrDType},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &module.Manifest{
				Storages: []module.StorageSpec{{Bytes: 1024, Device: info.UUID, DeviceType: info.Type}},
				Tensors:  c.tensors,
			}
			require.ErrorIs(t, m.Validate(), c.want)
			_, err := module.FromManifest(m, []*tensor.Storage{s})
			require.ErrorIs(t, err, c.want)
			if c.tensors[1].Name == "evil" {
				require.ErrorContains(t, err, `"evil"`)
			}
			require.Equal(t, int64(1), s.Refs())
		})
	}
}

func TestFromManifestChecksStorages(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	mem, err := dev.Alloc(16)
	require.NoError(t, err)
	s := tensor.NewStorage(mem)
	defer s.Close()
	info := dev.Info()
	good := module.StorageSpec{Bytes: 16, Device: info.UUID, DeviceType: info.Type}
	for name, spec := range map[string]module.StorageSpec{
		"larger":         {Bytes: 17, Device: good.Device, DeviceType: good.DeviceType},
		"negative":       {Bytes: -1, Device: good.Device, DeviceType: good.DeviceType},
		"other device":   {Bytes: 16, Device: driver.UUID{1}, DeviceType: good.DeviceType},
		"kind of device": {Bytes: 16, Device: good.Device, DeviceType: driver.CUDA},
	} {
		_, err := module.FromManifest(&module.Manifest{Storages: []module.StorageSpec{spec}}, []*tensor.Storage{s})
		require.ErrorIs(t, err, module.ErrManifest, name)
	}
	require.ErrorIs(t, (&module.Manifest{Storages: []module.StorageSpec{{Bytes: -1}}}).Validate(), module.ErrManifest)
	_, err = module.FromManifest(&module.Manifest{Storages: []module.StorageSpec{good, good}}, []*tensor.Storage{s})
	require.ErrorIs(t, err, module.ErrManifest)
	good.Device = driver.UUID{}
	sd, err := module.FromManifest(&module.Manifest{Storages: []module.StorageSpec{good}}, []*tensor.Storage{s})
	require.NoError(t, err, "a device that is not known is not compared")
	require.Zero(t, sd.Len())
	require.Equal(t, []*tensor.Storage{s}, sd.Storages(), "a storage without tensors is part of the state dict")
	copied := sd.Alias()
	require.NoError(t, sd.Close())
	m, storages := copied.Manifest()
	require.Len(t, m.Storages, 1)
	require.Equal(t, []*tensor.Storage{s}, storages)
	require.NoError(t, copied.Close())
	require.NoError(t, copied.Close())
	require.Equal(t, int64(1), s.Refs())
}

func TestCompare(t *testing.T) {
	t.Parallel()
	spec := func(name string, dt tensor.DType, shape ...int64) module.TensorSpec {
		return module.TensorSpec{Name: name, Spec: tensor.Spec{DType: dt, Shape: shape}}
	}
	manifest := func(tensors ...module.TensorSpec) *module.Manifest { return &module.Manifest{Tensors: tensors} }
	want := manifest(spec("a", tensor.Float32, 2), spec("b", tensor.Int8), spec("c", tensor.Int8, 1))
	moved := spec("b", tensor.Int8)
	moved.ByteOffset, moved.Storage = 512, 3
	require.NoError(t, module.Compare(want, manifest(want.Tensors[2], moved, want.Tensors[0])))

	err := module.Compare(want, manifest(spec("x", tensor.Int8), spec("a", tensor.Float16, 2), spec("c", tensor.Int8, 3)))
	var diff *module.KeyError
	require.ErrorAs(t, err, &diff)
	require.Equal(t, []string{"b"}, diff.Missing)
	require.Equal(t, []string{"x"}, diff.Unexpected)
	require.Equal(t, "a", diff.Mismatched[0].Name)
	require.EqualError(t, err, `state dict differs: 1 missing: "b"; 1 unexpected: "x"; `+
		`2 mismatched: "a" is float16[2], not float32[2], "c" is int8[3], not int8[1]`)

	many := &module.Manifest{}
	for _, name := range []string{"1", "2", "3", "4", "5", "6", "7"} {
		many.Tensors = append(many.Tensors, spec(name, tensor.Int8))
	}
	require.EqualError(t, module.Compare(many, &module.Manifest{}),
		`state dict differs: 7 missing: "1", "2", "3", "4", "5" and 2 more`)
}

func TestFreeze(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	sd := module.NewStateDict()
	set(t, dev, sd, "a", 1)
	set(t, dev, sd, "b", 2)
	tie(t, sd, "c", "b")
	require.NoError(t, module.Freeze(sd))
	require.NoError(t, module.Freeze(sd))
	for _, s := range sd.Storages() {
		h, err := s.Memory().Export()
		require.NoError(t, err)
		_, err = dev.Import(h, driver.ImportOptions{Writable: true})
		require.ErrorIs(t, err, driver.ErrReadOnly)
		require.NoError(t, h.Close())
	}
	require.NoError(t, sd.Close())
	require.Error(t, module.Freeze(sd), "closed memory")

	plain := &plainDevice{Device: dev}
	sd = module.NewStateDict()
	set(t, plain, sd, "a", 1)
	set(t, plain, sd, "b", 2)
	require.NoError(t, module.Freeze(sd))
	require.Equal(t, int64(1), plain.syncs.Load(), "one wait for each device")
	require.NoError(t, sd.Close())
}

func TestDigestsOfAManifest(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	first := module.NewStateDict()
	set(t, dev, first, "w", 1, 2, 3, 4)
	set(t, dev, first, "b", 5)
	computed, err := module.Digests(t.Context(), first, 1)
	require.NoError(t, err)
	m, storages := first.Manifest()
	for i := range m.Tensors {
		digest := computed[m.Tensors[i].Name]
		m.Tensors[i].Digest = &digest
	}
	sd, err := module.FromManifest(m, storages)
	require.NoError(t, err)
	require.NoError(t, first.Close())
	again, _ := sd.Manifest()
	require.Equal(t, m, again)

	require.NoError(t, sd.Rename("w", "weight"))
	set(t, dev, sd, "new", 1)
	clone := sd.Alias()
	b, _ := sd.Take("b")
	require.NoError(t, b.Close())
	for _, each := range []*module.StateDict{sd, clone} {
		got, ok := each.Digest("weight")
		require.True(t, ok)
		require.Equal(t, computed["w"], got)
		_, ok = each.Digest("new")
		require.False(t, ok, "nobody has said what this is")
		_, ok = each.Digest("w")
		require.False(t, ok)
	}
	got, ok := clone.Digest("b")
	require.True(t, ok)
	require.Equal(t, computed["b"], got)
	_, ok = sd.Digest("b")
	require.False(t, ok)
	require.NoError(t, clone.Close())
	require.NoError(t, sd.Close())
}

package module_test

import (
	"fmt"
	"log"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestNew(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	sd, err := module.New(dev, []module.NamedSpec{
		{Name: "wte", DType: tensor.Float32, Shape: tensor.Shape{3, 5}},
		{Name: "b", DType: tensor.BFloat16, Shape: tensor.Shape{}},
		{Name: "none", DType: tensor.Int8, Shape: tensor.Shape{0}},
		{Name: "head", DType: tensor.Float32, Shape: tensor.Shape{3, 5}, TiedTo: "wte"},
	})
	require.NoError(t, err)
	defer sd.Close()
	require.Equal(t, []string{"wte", "b", "none", "head"}, sd.Names())
	require.Len(t, sd.Storages(), 1, "one slab")
	require.Equal(t, [][]string{{"wte", "head"}}, sd.Aliases())
	wte, _ := sd.Get("wte")
	require.NoError(t, wte.Fill(2))
	for _, x := range sd.All() {
		require.Zero(t, x.Spec().ByteOffset%module.Alignment)
	}
	require.Equal(t, float32(2), values(t, sd, "head")[14])

	sd.Metadata = map[string]string{"step": "17"}
	like, err := module.ZerosLike(dev, sd)
	require.NoError(t, err)
	defer like.Close()
	want, _ := sd.Manifest()
	got, _ := like.Manifest()
	require.NoError(t, module.Compare(want, got))
	require.Equal(t, sd.Aliases(), like.Aliases())
	require.Equal(t, sd.Metadata, like.Metadata)
	require.Zero(t, values(t, like, "wte")[0])

	empty, err := module.New(dev, nil)
	require.NoError(t, err)
	require.Zero(t, empty.Len())
}

func TestNewRefuses(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	one := tensor.Shape{1}
	for name, test := range map[string]struct {
		specs []module.NamedSpec
		want  error
	}{
		"no name":       {[]module.NamedSpec{{DType: tensor.Int8, Shape: one}}, module.ErrName},
		"a name twice":  {[]module.NamedSpec{{Name: "a", DType: tensor.Int8, Shape: one}, {Name: "a", DType: tensor.Int8, Shape: one}}, module.ErrDuplicateName},
		"no type":       {[]module.NamedSpec{{Name: "a", Shape: one}}, tensor.ErrDType},
		"no shape":      {[]module.NamedSpec{{Name: "a", DType: tensor.Int8, Shape: tensor.Shape{-1}}}, tensor.ErrShape},
		"too large":     {[]module.NamedSpec{{Name: "a", DType: tensor.Int8, Shape: tensor.Shape{1 << 62}}, {Name: "b", DType: tensor.Int8, Shape: tensor.Shape{1 << 62}}}, module.ErrTooLarge},
		"tied to none":  {[]module.NamedSpec{{Name: "a", DType: tensor.Int8, Shape: one, TiedTo: "b"}, {Name: "b", DType: tensor.Int8, Shape: one}}, module.ErrManifest},
		"tied to other": {[]module.NamedSpec{{Name: "b", DType: tensor.Uint8, Shape: one}, {Name: "a", DType: tensor.Int8, Shape: one, TiedTo: "b"}}, module.ErrManifest},
	} {
		_, err := module.New(dev, test.specs)
		require.ErrorIs(t, err, test.want, name)
	}
}

func TestTakeAndRename(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	sd := module.NewStateDict()
	set(t, dev, sd, "a", 1)
	set(t, dev, sd, "b", 2)
	set(t, dev, sd, "c", 3)
	defer sd.Close()
	require.NoError(t, sd.Rename("b", "x"))
	require.NoError(t, sd.Rename("c", "c"))
	require.ErrorIs(t, sd.Rename("x", "a"), module.ErrDuplicateName)
	require.ErrorIs(t, sd.Rename("b", "y"), module.ErrName)
	require.ErrorIs(t, sd.Rename("x", ""), module.ErrName)
	require.Equal(t, []string{"a", "x", "c"}, sd.Names())
	require.Equal(t, []float32{2}, values(t, sd, "x"))
	x, ok := sd.Take("x")
	require.True(t, ok)
	require.NoError(t, x.Close())
	_, ok = sd.Take("x")
	require.False(t, ok)
	require.Equal(t, []string{"a", "c"}, sd.Names())
	require.Equal(t, []float32{3}, values(t, sd, "c"))
	_, ok = sd.Get("x")
	require.False(t, ok)
}

func ExampleNew() {
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	sd, err := module.New(dev, []module.NamedSpec{
		{Name: "weight", DType: tensor.Float32, Shape: tensor.Shape{2, 2}},
		{Name: "bias", DType: tensor.Float32, Shape: tensor.Shape{2}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer sd.Close()
	bias, _ := sd.Get("bias")
	if err := bias.Fill(0.5); err != nil {
		log.Fatal(err)
	}
	fmt.Println(bias, len(sd.Storages()))
	// Output: tensor([0.5000, 0.5000]) 1
}

package module_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func TestStateDictDigest(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	digest := func(fill func(sd *module.StateDict)) module.Digest {
		sd := module.NewStateDict()
		defer sd.Close()
		fill(sd)
		d, err := module.StateDictDigest(t.Context(), sd, 0)
		require.NoError(t, err)
		require.NoError(t, module.Verify(t.Context(), sd, d))
		require.ErrorIs(t, module.Verify(t.Context(), sd, module.Digest{1}), module.ErrDigest)
		return d
	}
	base := digest(func(sd *module.StateDict) { set(t, dev, sd, "b", 1, 2); set(t, dev, sd, "a", 3) })
	// Computed by hand according to the doc comment.
	one, two := sha256.Sum256([]byte{0, 0, 0x40, 0x40}), sha256.Sum256([]byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0x40})
	text := append(append([]byte("1:a float32 [1] "), one[:]...), append([]byte("1:b float32 [2] "), two[:]...)...)
	require.Equal(t, module.Digest(sha256.Sum256(text)), base)

	same := map[string]func(sd *module.StateDict){
		"another order": func(sd *module.StateDict) { set(t, dev, sd, "a", 3); set(t, dev, sd, "b", 1, 2) },
		"metadata": func(sd *module.StateDict) {
			sd.Metadata = map[string]string{"x": "y"}
			set(t, dev, sd, "a", 3)
			set(t, dev, sd, "b", 1, 2)
		},
	}
	for name, fill := range same {
		require.Equal(t, base, digest(fill), name)
	}
	for name, fill := range map[string]func(sd *module.StateDict){
		"another value": func(sd *module.StateDict) { set(t, dev, sd, "a", 3); set(t, dev, sd, "b", 1, 4) },
		"another name":  func(sd *module.StateDict) { set(t, dev, sd, "a", 3); set(t, dev, sd, "c", 1, 2) },
		"one less":      func(sd *module.StateDict) { set(t, dev, sd, "b", 1, 2) },
		"another shape": func(sd *module.StateDict) {
			set(t, dev, sd, "a", 3)
			x, err := tensor.FromSlice(dev, tensor.Shape{2, 1}, []float32{1, 2})
			require.NoError(t, err)
			require.NoError(t, sd.Set("b", x))
		},
		"another type": func(sd *module.StateDict) {
			set(t, dev, sd, "a", 3)
			x, err := tensor.FromSlice(dev, tensor.Shape{2}, []int32{0x3f800000, 0x40000000})
			require.NoError(t, err)
			require.NoError(t, sd.Set("b", x))
		},
	} {
		require.NotEqual(t, base, digest(fill), name)
	}
	tied := digest(func(sd *module.StateDict) { set(t, dev, sd, "a", 3); tie(t, sd, "b", "a") })
	require.Equal(t, tied, digest(func(sd *module.StateDict) { set(t, dev, sd, "a", 3); set(t, dev, sd, "b", 3) }), "ties are not part of it")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	sd := module.NewStateDict()
	defer sd.Close()
	set(t, dev, sd, "a", 1)
	require.ErrorIs(t, module.Verify(ctx, sd, base), context.Canceled)
}

func TestParseDigest(t *testing.T) {
	t.Parallel()
	want := module.Digest(sha256.Sum256([]byte("x")))
	got, err := module.ParseDigest(want.String())
	require.NoError(t, err)
	require.Equal(t, want, got)
	for _, text := range []string{"", "ab", want.String()[1:] + "g", want.String() + "00"} {
		_, err := module.ParseDigest(text)
		require.Error(t, err, text)
	}
}

func ExampleVerify() {
	ctx := context.Background()
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	sd, err := module.New(dev, []module.NamedSpec{{Name: "bias", DType: tensor.Float32, Shape: tensor.Shape{3}}})
	if err != nil {
		log.Fatal(err)
	}
	defer sd.Close()
	digest, err := module.StateDictDigest(ctx, sd, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(module.Verify(ctx, sd, digest))
	bias, _ := sd.Get("bias")
	if err := bias.Fill(1); err != nil {
		log.Fatal(err)
	}
	fmt.Println(module.Verify(ctx, sd, digest) == nil)
	// Output:
	// <nil>
	// false
}

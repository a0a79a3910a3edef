package module_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module"
)

func TestNotes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dev := openHost(t)
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 3, Bytes: 1 << 12})
	require.NoError(t, err)
	defer sd.Close()
	a, b := sd.Names()[0], sd.Names()[1]
	require.Empty(t, sd.Compatibility())
	sd.SetCompatibility("tp=2 rank=0")
	require.NoError(t, sd.SetNote(a, module.NoteBuffer))
	require.NoError(t, sd.SetNote(b, "scale"))
	require.ErrorIs(t, sd.SetNote("nothing", "x"), module.ErrName)

	file := filepath.Join(t.TempDir(), "m.safetensors")
	require.NoError(t, module.Save(ctx, file, sd, module.SaveOptions{}))
	back, err := module.Load(ctx, dev, file, module.LoadOptions{})
	require.NoError(t, err)
	defer back.Close()
	require.Equal(t, "tp=2 rank=0", back.Compatibility())
	require.Equal(t, module.NoteBuffer, back.Note(a))

	require.NoError(t, back.Rename(a, "other"))
	require.Equal(t, module.NoteBuffer, back.Note("other"))
	require.Empty(t, back.Note(a))
	taken, ok := back.Take(b)
	require.True(t, ok)
	require.NoError(t, taken.Close())
	require.Empty(t, back.Note(b))
	require.NoError(t, back.SetNote("other", ""))
	back.SetCompatibility("")
	for key := range back.Metadata {
		require.NotContains(t, key, "sharedtensor.", "nothing is left of it")
	}
}

func TestSetDigests(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	sd, err := module.Synthesize(openHost(t), module.Synthetic{Tensors: 3, Bytes: 1 << 12})
	require.NoError(t, err)
	defer sd.Close()
	_, ok := sd.ClaimedDigest()
	require.False(t, ok)
	each, err := module.Digests(ctx, sd, 0)
	require.NoError(t, err)
	name := sd.Names()[0]
	delete(each, name)
	require.ErrorIs(t, sd.SetDigests(each), module.ErrName)
	each["another"] = module.Digest{}
	require.ErrorIs(t, sd.SetDigests(each), module.ErrName)
	_, ok = sd.Digest(sd.Names()[1])
	require.False(t, ok, "a map that is refused changes nothing")

	require.NoError(t, module.AddDigests(ctx, sd, 0))
	whole, err := module.StateDictDigest(ctx, sd, 0)
	require.NoError(t, err)
	claimed, ok := sd.ClaimedDigest()
	require.True(t, ok)
	require.Equal(t, whole, claimed)
	m, storages := sd.Manifest()
	require.NotNil(t, m.Tensors[0].Digest)
	require.Len(t, storages, 1)
}

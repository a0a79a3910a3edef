package module_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/module"
)

// A joined state dict has every part under its prefix, and each part is unchanged when it is taken out again.
func TestJoinAndUnder(t *testing.T) {
	drivertest.Leaks(t)
	dev := openHost(t)
	part := func(key string, digests bool, values ...float32) *module.StateDict {
		sd := module.NewStateDict()
		set(t, dev, sd, "w", values...)
		set(t, dev, sd, "b", values[0])
		sd.SetCompatibility(key)
		require.NoError(t, sd.SetNote("b", module.NoteBuffer))
		if digests {
			require.NoError(t, module.AddDigests(t.Context(), sd, 1))
		}
		return sd
	}
	for _, digests := range [][2]bool{{false, false}, {true, false}, {false, true}, {true, true}} {
		parts := []*module.StateDict{part("one", digests[0], 1, 2), part("two", digests[1], 3, 4, 5)}
		prefixes := []string{"rank0/", "rank1/"}
		var named []*module.StateDict
		for i, sd := range parts {
			p, err := sd.WithPrefix(prefixes[i])
			require.NoError(t, err)
			named = append(named, p)
		}
		whole, err := module.Join(named...)
		require.NoError(t, err)
		_, err = module.Join(named[0], named[0])
		require.ErrorIs(t, err, module.ErrDuplicateName)
		for _, sd := range named {
			require.NoError(t, sd.Close())
		}
		require.Equal(t, []string{"rank0/w", "rank0/b", "rank1/w", "rank1/b"}, whole.Names())
		_, complete := whole.ClaimedDigest()
		require.Equal(t, digests[0] && digests[1], complete)
		for i, want := range parts {
			got := whole.Under(prefixes[i])
			require.Equal(t, want.Names(), got.Names())
			require.Equal(t, want.Metadata, got.Metadata)
			require.Equal(t, want.Storages(), got.Storages(), "the memory is the same")
			claimed, ok := got.ClaimedDigest()
			wantClaimed, wantOK := want.ClaimedDigest()
			require.Equal(t, wantOK, ok)
			require.Equal(t, wantClaimed, claimed)
			digest, err := module.StateDictDigest(t.Context(), want, 1)
			require.NoError(t, err)
			require.NoError(t, module.Verify(t.Context(), got, digest))
			require.NoError(t, got.Close())
			require.NoError(t, want.Close())
		}
		require.Zero(t, whole.Under("rank2/").Len())
		require.NoError(t, whole.Close())
	}
	sd := module.NewStateDict()
	_, err := sd.WithPrefix("\xff")
	require.ErrorIs(t, err, module.ErrName)
}

package catalog_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module/catalog"
)

func TestNearest(t *testing.T) {
	t.Parallel()
	names := []string{"llama", "llama-3-8b", "whisper", "größe", "a", strings.Repeat("n", 200)}
	for name, want := range map[string]string{
		"lama": "llama", "Llama": "llama", "lalma": "llama", "llama-3-8": "llama-3-8b", "whisp": "whisper", "grosse": "", "größ": "größe",
		"wh": "whisper", "b": "", "": "", "gpt": "", "llama": "llama-3-8b", "\xff": "", strings.Repeat("n", 199): "",
		strings.Repeat("x", 1<<20): "",
	} {
		require.Equal(t, want, catalog.Nearest(name, slices.Values(names)), "%.20q", name)
	}
	looked := 0
	require.Empty(t, catalog.Nearest("wanted", func(yield func(string) bool) {
		for yield(fmt.Sprint("other ", looked)) {
			looked++
		}
	}))
	require.Equal(t, 1024, looked, "a request that fails costs a bounded time")
}

// An error for an unpublished name suggests the most similar published name.
func TestUnknownNamesAreSuggested(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{})
	b.publish("llama")
	b.publish("lame")
	require.NoError(t, b.Withdraw("lame"))
	_, err := b.Acquire("lama", 0, catalog.Holder{ID: 1})
	require.ErrorIs(t, err, catalog.ErrNotFound)
	require.EqualError(t, err, `acquire "lama": not found; did you mean "llama"?`, "and not the one that was withdrawn")
	var of *catalog.NameError
	require.ErrorAs(t, err, &of)
	require.Equal(t, "lama", of.Name)
	_, err = b.Info("lama")
	require.EqualError(t, err, `info of "lama": not found; did you mean "llama"?`)
	require.EqualError(t, b.Withdraw("lama"), `withdraw "lama": not found; did you mean "llama"?`)
	_, err = b.Acquire("llama", 7, catalog.Holder{ID: 1})
	require.EqualError(t, err, `acquire version 7 of "llama": no such version: the newest is 1`)
}

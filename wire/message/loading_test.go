package message

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// A client without support for loading reads the published names as before.
func TestLoadingIsIgnoredByOldClients(t *testing.T) {
	body, err := os.ReadFile("../testdata/listed-loading.cbor")
	require.NoError(t, err)
	var old struct {
		Models []ModelInfo `cbor:"1,keyasint"`
	}
	require.NoError(t, Unmarshal(body, &old))
	require.Empty(t, old.Models)
	require.Equal(t, "loading", LoadState(77).String(), "of a state to come")
}

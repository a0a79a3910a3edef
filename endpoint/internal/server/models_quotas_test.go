package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Digests that the owner computes for a client are charged to the client.
func TestDigestsAreCharged(t *testing.T) {
	in := message.Publish{Manifest: message.Manifest{NameLengths: make([]byte, 4*1000)}}
	without, err := newCharge(1, &in, nil)
	require.NoError(t, err)
	in.Digests = true
	with, err := newCharge(1, &in, nil)
	require.NoError(t, err)
	require.GreaterOrEqual(t, with.Manifests-without.Manifests, int64(32*1000), "each tensor has a digest")
}

package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRoundTrip(t *testing.T) {
	a, b, err := Pipe(Limits{})
	require.NoError(t, err)
	defer a.Close()
	defer b.Close()
	require.NoError(t, a.Send(KindRequest, 7, []byte{1}))
	f, err := b.Receive()
	require.NoError(t, err)
	require.Equal(t, Frame{Kind: KindRequest, ID: 7, Body: []byte{1}}, f)
	require.True(t, b.Peer().SameUser())
}

package jsonrpc

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Responses of a batch that do not fit leave their part of the limit to the others.
func TestRefusedResponsesGiveTheirAllowanceBack(t *testing.T) {
	t.Parallel()
	dev := remotetest.OpenHost(t)
	large, err := tensor.Zeros(dev, tensor.Uint8, tensor.Shape{1 << 20})
	require.NoError(t, err)
	defer large.Close()
	all := &allowance{}
	all.left.Store(4 << 20)
	replies := make([]*reply, 5)
	for i := range replies {
		replies[i] = &reply{allowance: all}
		_, err := replies[i].data(large)
		if i == 4 {
			require.ErrorIs(t, err, models.ErrTooLarge)
			continue
		}
		require.NoError(t, err)
	}
	var fitting atomic.Int64
	var running sync.WaitGroup
	for _, one := range replies[:4] {
		one.text = make([]byte, 60)
		running.Go(func() {
			if one.fits() {
				fitting.Add(1)
				one.fail("1", &Error{}) // releases the tensors
			}
		})
	}
	running.Wait()
	require.GreaterOrEqual(t, fitting.Load(), int64(3), "nothing is left for the text of the first one")
	require.Equal(t, 4<<20-fitting.Load()*60, all.left.Load())
	require.NoError(t, replies[4].close())
	require.Equal(t, 4<<20-fitting.Load()*60, all.left.Load(), "it took nothing")
}

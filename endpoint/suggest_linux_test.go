package endpoint_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// Errors suggest the most similar name, and contain the requested name once.
func TestErrorSuggestsNames(t *testing.T) {
	s := hostileOwner(t)
	c, err := endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: s.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Acquire(t.Context(), "n", endpoint.AcquireOptions{})
	require.EqualError(t, err, `acquire "n": owner: not found`)
	_, err = c.Acquire(t.Context(), "m", endpoint.AcquireOptions{Version: 9})
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	require.EqualError(t, err, `acquire version 9 of "m": owner: no such version: the newest is 1`)
	_, err = c.Info(t.Context(), "M")
	require.EqualError(t, err, `info of "M": owner: not found; did you mean "m"?`)
	require.EqualError(t, c.Withdraw(t.Context(), "M"), `withdraw "M": owner: not found; did you mean "m"?`)
	_, err = c.Manifest(t.Context(), "M", 0)
	require.EqualError(t, err, `manifest of "M": owner: not found; did you mean "m"?`)
	err = c.Call(t.Context(), "nothing", 1, nil)
	require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
	require.NotContains(t, err.Error(), "did you mean")

	named := serve(t, endpoint.ServerOptions{Logger: discard(), Registry: valueRegistry(t, nil)})
	c, err = endpoint.Dial(t.Context(), endpoint.ClientOptions{Socket: named.Socket(), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	err = c.Call(t.Context(), "stcuk", 1, nil)
	require.ErrorIs(t, err, endpoint.ErrNoEndpoint)
	require.ErrorContains(t, err, `did you mean "stuck"?`)
}

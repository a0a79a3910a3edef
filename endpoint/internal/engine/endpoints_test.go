package engine_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Tensors are declared by tags, options and offers, and invalid declarations are refused.
func TestDeclaredTensors(t *testing.T) {
	t.Parallel()
	type in struct {
		X *tensor.Tensor `json:"x" tensor:"float32[ -1, 3]"`
		Y *tensor.Tensor `json:"y,omitempty" tensor:"[2]"`
		Z *tensor.Tensor `json:"z,omitempty"`
	}
	r := endpoint.NewRegistry()
	require.NoError(t, endpoint.Register(r, "fields", func(context.Context, in) (int, error) { return 0, nil }, endpoint.Batch(8, time.Millisecond)))
	require.NoError(t, endpoint.Register(r, "whole", func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) { return x, nil },
		endpoint.ArgumentTensor("int64"), endpoint.ResultTensor("float32[]")))
	server, err := endpoint.NewServer(endpoint.ServerOptions{Local: true, Registry: r})
	require.NoError(t, err)
	defer server.Close()
	list, err := server.Endpoints(t.Context())
	require.NoError(t, err)
	text, err := json.Marshal(list)
	require.NoError(t, err)
	for _, part := range []string{`"tensor":"float32[-1,3]"`, `"tensor":"[2]"`, `"batch_max":8,"batch_delay":1000000`, `"in_tensor":"int64"`, `"out_tensor":"float32[]"`} {
		require.Contains(t, string(text), part)
	}
	require.Nil(t, list[0].InFields[2].Tensor)

	type notATensor struct {
		X int `tensor:"float32"`
	}
	type noDType struct {
		X *tensor.Tensor `tensor:"float99[1]"`
	}
	require.ErrorContains(t, endpoint.Register(r, "a", func(context.Context, notATensor) (int, error) { return 0, nil }), "but is no tensor")
	require.ErrorContains(t, endpoint.Register(r, "b", func(context.Context, noDType) (int, error) { return 0, nil }), "float99")
	identity := func(_ context.Context, x int) (int, error) { return x, nil }
	require.ErrorContains(t, endpoint.Register(r, "c", identity, endpoint.ArgumentTensor("float32")), "use the tag tensor")
	require.ErrorContains(t, endpoint.Register(r, "d", identity, endpoint.Batch(1, 0)), "batches of 1")
	for _, spec := range []string{"", "float32[", "float32[x]", "[-2]", "float32[1,]"} {
		require.ErrorIs(t, endpoint.Register(r, "e", func(_ context.Context, x *tensor.Tensor) (int, error) { return 0, nil }, endpoint.ArgumentTensor(spec)), endpoint.ErrInvalid, spec)
	}
}

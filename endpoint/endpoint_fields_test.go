package endpoint

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

type rateIn struct {
	Rate float32 `json:"rate,omitempty"`
}

func TestServerInfoEndpointFields(t *testing.T) {
	ctx := context.Background()
	r := NewRegistry()
	server, err := NewServer(ServerOptions{Local: true, Registry: r})
	require.NoError(t, err)
	defer server.Close()
	err = Register(r, "e", func(_ context.Context, in struct{ Inner []rateIn }) (map[string]rateIn, error) { return nil, nil })
	require.NoError(t, err)
	list, err := server.Endpoints(ctx)
	require.NoError(t, err)
	rate := []FieldInfo{{Name: "rate", Type: "float32", Optional: true}}
	require.Equal(t, []FieldInfo{{Name: "Inner", Type: "[]endpoint.rateIn", Fields: rate}}, list[0].InFields)
	require.Equal(t, rate, list[0].OutFields)
	require.Equal(t, "struct", list[0].In)
	require.Equal(t, "map[string]endpoint.rateIn", list[0].Out)
}

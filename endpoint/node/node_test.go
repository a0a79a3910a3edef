package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/node"
)

// A function of one type runs in this process or in the owner, depending on the environment. Here the environment is
// empty, so it runs in this process.
func ExampleShare() {
	ctx := context.Background()
	n, err := node.Open(ctx, node.Options{}) // according to SHARED_TENSOR_ENABLED and SHARED_TENSOR_ROLE
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close()
	double, err := node.Share(n, "double", func(_ context.Context, x int) (int, error) { return 2 * x, nil })
	if err != nil {
		log.Fatal(err)
	}
	n.Ready() // a server answers from now on
	got, err := double(ctx, 21)
	fmt.Println(n.Mode(), got, err)
	// Output: local 42 <nil>
}

func TestModesThroughJSON(t *testing.T) {
	for mode := node.ModeAuto; mode <= node.ModeClient; mode++ {
		text, err := json.Marshal(mode)
		require.NoError(t, err)
		var got node.Mode
		require.NoError(t, json.Unmarshal(text, &got))
		require.Equal(t, mode, got)
	}
	require.ErrorIs(t, json.Unmarshal([]byte(`"none"`), new(node.Mode)), endpoint.ErrInvalid)
}

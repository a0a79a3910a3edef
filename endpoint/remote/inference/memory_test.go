package inference_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// Although requests reuse memory, a tensor that a function kept does not change, data of other requests is invisible,
// and a function that writes to its argument gets writable memory. This holds for functions of an owner and for those
// of the gateway.
func TestArgumentMemoryIsReused(t *testing.T) {
	embedded, _, _ := startProcess(t, "embedded")
	owned := serve(t, remotetest.StartOwner(t)).Addresses.GRPC
	for name, address := range map[string]string{"embedded": embedded, "owner": owned} {
		t.Run(name, func(t *testing.T) {
			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer conn.Close()
			client := pb.NewGRPCInferenceServiceClient(conn)
			ask := func(model string, data []byte) []byte {
				r := identity(len(data) / 4)
				r.ModelName, r.RawInputContents = model, [][]byte{data}
				answer, err := client.ModelInfer(t.Context(), r)
				require.NoError(t, err)
				require.Len(t, answer.RawOutputContents, 1)
				return answer.RawOutputContents[0]
			}
			const n = 1000
			ask("identity", elements(n)) // leaves memory that the next request reuses
			require.Equal(t, elements(n), ask("kept", elements(n)))
			for i := range 50 {
				others := bytes.Repeat([]byte{byte(i + 1)}, 4*n)
				require.Equal(t, others, ask("identity", others))
				require.Equal(t, elements(n), ask("kept", others), "what the function kept was written over")
				few := others[:4*(1+i%3)]
				require.Zero(t, binary.LittleEndian.Uint64(ask("behind", few)), "it sees what others sent")
				two := ask("twice", []byte{0, 0, 0x80, 0x3f})
				require.Equal(t, []byte{0, 0, 0, 0x40}, two)
			}
		})
	}
}

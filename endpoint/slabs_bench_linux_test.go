package endpoint_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// BenchmarkResults measures a call whose result is in reused memory, both sides in this process, beside the time to
// fill the memory.
func BenchmarkResults(b *testing.B) {
	hostOnly(b, "memory of other devices is not used again")
	_, _, c := slabFixture(b, endpoint.Limits{})
	for _, size := range []int64{1, 1 << 20, 8 << 20} {
		b.Run(fmt.Sprintf("KiB=%d", size>>10), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				x, err := endpoint.Call[*tensor.Tensor](context.Background(), c, "dirty", pageIn{Bytes: size})
				require.NoError(b, err)
				require.NoError(b, x.Close())
			}
		})
	}
}

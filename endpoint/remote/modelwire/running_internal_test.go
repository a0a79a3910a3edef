package modelwire

import (
	"crypto/sha256"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module"
)

// Pieces that arrive in any order, concurrently, and in parts that are fed or not, give the digest of the whole, which
// is reported once.
func TestRunningDigest(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		data := make([]byte, 1+r.IntN(5000))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		sum := newRunningDigest(int64(len(data)), int64(1+r.IntN(700)), int64(1+r.IntN(700)), writeBytes(data))
		order := r.Perm(sum.pieces())
		if seed%3 == 0 { // as over one connection
			for i := range order {
				order[i] = i
			}
		}
		const workers = 3
		var next, complete atomic.Int64
		var running sync.WaitGroup
		for range workers {
			running.Go(func() {
				for i := next.Add(1) - 1; int(i) < len(order); i = next.Add(1) - 1 {
					begin, end := sum.piece(order[i])
					for at := begin; at < end; at += 50 {
						sum.feed(at, data[at:min(at+50, end)])
					}
					if sum.arrived(order[i]) {
						complete.Add(1)
					}
				}
			})
		}
		running.Wait()
		require.EqualValues(t, 1, complete.Load(), "one goroutine is told")
		require.Equal(t, module.Digest(sha256.Sum256(data)), sum.digest())
	}
}

// Every piece is scheduled exactly once, and the pieces of one item keep their order.
func TestInTurns(t *testing.T) {
	got := inTurns([]int{3, 1, 0, 2, 2}, 2, func(n int) int { return n })
	require.Equal(t, []turn[int]{{3, 0}, {1, 0}, {3, 1}, {3, 2}, {2, 0}, {2, 1}, {2, 0}, {2, 1}}, got)
}

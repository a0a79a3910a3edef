package bins_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// When the disk of the server is full, writers get an error. When space is available again, acknowledged items are
// stored, and no item is stored in part.
func TestStoreDiskFull(t *testing.T) {
	disk := remotetest.NewSmallDisk(t, 8<<20)
	address := remotetest.FreeAddress(t)
	server := startServer(t, disk.Path, address)
	conn, err := natslink.Connect("nats://" + address)
	require.NoError(t, err)
	defer conn.Close()
	s := open(t, conn, bins.Options{Inline: 64 << 10})
	inline, beside := make([]byte, 60<<10), make([]byte, 200<<10) // stored in the message and as an object
	acked := map[string]int{}
	var full error
	for i := 0; full == nil; i++ {
		require.Less(t, i, 200, "the disk has space for fewer")
		body := inline
		if i%4 == 3 {
			body = beside
		}
		copy(body, strconv.Itoa(i)+"\n")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		begin := time.Now()
		_, full = s.Append(ctx, "a", bins.Value{Body: body})
		cancel()
		if full == nil {
			acked[name(body)] = len(body)
		} else {
			t.Logf("after %d items and %v: %v", i, time.Since(begin), full)
		}
	}
	require.True(t, errors.Is(full, bins.ErrFull) || errors.Is(full, bins.ErrOutcomeUnknown), "%v", full)
	require.NotEmpty(t, acked)

	server.kill()
	disk.Resize(64 << 20)
	server = startServer(t, disk.Path, address)
	defer server.kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	items, err := s.Peek(ctx, "a")
	require.NoError(t, err)
	found := map[string]int{}
	for _, item := range items {
		require.Contains(t, []int{len(inline), len(beside)}, len(item.Body), "completely or not at all")
		found[name(item.Body)] = len(item.Body)
	}
	for item, size := range acked {
		require.Equal(t, size, found[item], "item %s was acknowledged", item)
	}
	require.LessOrEqual(t, len(found), len(acked)+1, "plus at most the one whose writer got no answer")
	_, err = s.Append(ctx, "a", bins.Value{Body: inline})
	require.NoError(t, err, "there is space again")
}

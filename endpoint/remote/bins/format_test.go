package bins_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/pytest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// A client in Python, written from FORMAT.md, reads and takes items of this package, and this package those of the client.
// Both take from one bin at once, and each item has one taker.
func TestFormatInPython(t *testing.T) {
	t.Parallel()
	python := pytest.Python(t, "nats")
	address := remotetest.FreeAddress(t)
	_, conn := start(t, natslink.ServerOptions{Listen: address})
	ctx := longContext(t)
	s := open(t, conn, bins.Options{})
	large := bytes.Repeat([]byte("large"), 1<<17)
	for _, name := range []string{"from go", "from.go"} {
		for _, body := range [][]byte{[]byte("small"), large} {
			_, err := s.Append(ctx, name, bins.Value{Body: body})
			require.NoError(t, err)
		}
	}
	client := exec.CommandContext(ctx, python, "testdata/bins_client.py", "nats://"+address, "test")
	var stderr bytes.Buffer
	client.Stderr = &stderr
	out, err := client.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, client.Start())
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	require.NoError(t, err, "%s", &stderr)
	require.Equal(t, "done\n", line)

	items, err := s.Take(ctx, "from python", bins.TakeOptions{})
	require.NoError(t, err)
	require.Len(t, items, 2, "put replaced the first one")
	require.Equal(t, "text/plain; x=ä", items[0].Type)
	require.True(t, items[0].Put)
	require.Equal(t, large, items[1].Body)

	seen := map[string]int{}
	const total = 200
	for i := range total {
		_, err := s.Append(ctx, "shared", bins.Value{Body: []byte(fmt.Sprint(i))})
		require.NoError(t, err)
		if i%20 != 0 {
			continue
		}
		taken, err := s.Take(ctx, "shared", bins.TakeOptions{})
		require.True(t, err == nil || errors.Is(err, bins.ErrNotFound), "%v", err)
		for _, item := range taken {
			seen[string(item.Body)]++
		}
	}
	_, err = s.Append(ctx, "shared", bins.Value{Body: []byte("end")})
	require.NoError(t, err)
	line, err = lines.ReadString('\n')
	require.NoError(t, err, "%s", &stderr)
	var taken []string
	require.NoError(t, json.Unmarshal([]byte(line), &taken))
	require.NoError(t, client.Wait())
	for _, body := range taken {
		seen[body]++
	}
	require.Len(t, seen, total+1)
	for body, n := range seen {
		require.Equal(t, 1, n, "item %s has one taker", body)
	}
}

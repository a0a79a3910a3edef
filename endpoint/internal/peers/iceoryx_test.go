package peers

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// iceoryx builds the Rust program that makes the same calls with iceoryx2, in the user's cache directory, where later
// runs find it.
var iceoryx = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	target := filepath.Join(cache, "sharedtensor-peers")
	build := exec.Command("cargo", "build", "--release", "--locked", "--quiet", "--manifest-path", "iceoryx2/Cargo.toml", "--target-dir", target)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cargo build: %w: %s", err, out)
	}
	return filepath.Join(target, "release", "iceoryx2-peer"), nil
})

// benchmarkIceoryx runs the program for one case. Its two processes spin, so they run only during the benchmark.
func benchmarkIceoryx(b *testing.B, args ...string) {
	if testing.Short() {
		b.Skip("the build of the program of iceoryx2 takes minutes")
	}
	path, err := iceoryx()
	if err != nil {
		b.Skip("iceoryx2: ", err)
	}
	cmd := exec.Command(path, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	lines := bufio.NewReader(out)
	turn := func(n int) (took []time.Duration) {
		_, err := fmt.Fprintln(in, n)
		require.NoError(b, err)
		line, err := lines.ReadString('\n')
		require.NoError(b, err)
		for field := range strings.FieldsSeq(line) {
			var ns time.Duration
			_, err := fmt.Sscan(field, &ns)
			require.NoError(b, err)
			took = append(took, ns)
		}
		require.Len(b, took, n)
		return took
	}
	turn(max(b.N/10, 2))
	b.ResetTimer()
	reportQuantiles(b, turn(b.N))
	require.NoError(b, in.Close())
	require.NoError(b, cmd.Wait())
}

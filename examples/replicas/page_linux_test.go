package main_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// The first two blocks of docs/replicas.md work as they are, with programs and a model that are here already: each kind of
// process is killed, and no request fails.
func TestPage(t *testing.T) {
	t.Parallel()
	_, err := exec.LookPath("curl")
	drivertest.Needs(t, "curl", err == nil, "curl is not installed")
	page, err := os.ReadFile("../../docs/replicas.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), 2)
	require.Len(t, blocks, 2)
	l, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	address := l.Addr().String()
	l.Close()
	var script strings.Builder
	for _, block := range blocks {
		for line := range strings.Lines(strings.NewReplacer("localhost:8080", address, "seq 200", "seq 80", "sleep 1\n", "sleep 0.2\n").Replace(block[1])) {
			if regexp.MustCompile(`^(pip|python3|go) `).MatchString(line) {
				continue // the test prepares their results
			}
			script.WriteString(line)
		}
	}
	script.WriteString("\nwait $front\n")

	dir, err := os.MkdirTemp("", "st")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	data := filepath.Join(dir, "build/silero/silero_vad/data")
	require.NoError(t, os.MkdirAll(data, 0o700))
	require.NoError(t, os.Symlink(weights(t), filepath.Join(data, "silero_vad_16k.safetensors")))
	for _, name := range []string{"sharedtensor", "replicas", "replica"} {
		require.NoError(t, os.Symlink(program(t, name), filepath.Join(dir, "build", name)))
	}
	examples, err := filepath.Abs("..")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(examples, filepath.Join(dir, "examples")))
	run := exec.Command("bash", "-c", script.String())
	run.Dir = dir
	run.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir, "SHARED_TENSOR_BASE_PATH=", "NVIDIA_DRA_LOCAL_IPC_DIR=")
	out, err := run.CombinedOutput()
	text := string(out)
	require.NoError(t, err, text)
	require.NotContains(t, text, "failed", text)
	require.Contains(t, text, `{"result":[0`, text)
	require.Contains(t, text, "signal: killed; it starts again in 100ms", text)
	require.Equal(t, 4, strings.Count(text, "runs since an earlier front"), text)
	answer, err := os.ReadFile(filepath.Join(dir, "build/answer"))
	require.NoError(t, err)
	require.Contains(t, string(answer), `"version":1`)
}

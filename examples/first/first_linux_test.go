// Package main_test runs the program of the README.
package main_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// The functions in the README's first Go block are those of this program.
func TestReadmeShowsThisProgram(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	program, err := os.ReadFile("main.go")
	require.NoError(t, err)
	_, code, found := strings.Cut(string(readme), "```go\n")
	require.True(t, found)
	code, _, _ = strings.Cut(code, "```")
	blocks := strings.Split(strings.TrimSpace(code), "\n\n")
	require.GreaterOrEqual(t, len(blocks), 2)
	for _, block := range blocks {
		require.Contains(t, blanks(string(program)), blanks(block))
	}
}

// blanks replaces each run of white space by one space.
func blanks(text string) string { return strings.Join(strings.Fields(text), " ") }

// A worker that starts before its owner follows a bfloat16 model with tied weights.
func TestModelOfBFloat16WithTiedWeights(t *testing.T) {
	dir, err := os.MkdirTemp("", "st") // short enough for a socket's path
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	file, first := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "first")
	writeModel(t, file)
	out, err := exec.Command("go", "build", "-o", first, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	env := append(os.Environ(), "SHARED_TENSOR_BASE_PATH="+filepath.Join(dir, "s"))

	worker := exec.Command(first, "work") // waits for its owner
	worker.Env = env
	var output strings.Builder
	worker.Stdout, worker.Stderr = &output, os.Stderr
	require.NoError(t, worker.Start())
	t.Cleanup(func() { worker.Process.Kill() })
	owner := exec.Command(first, "own", file)
	owner.Env, owner.Stderr = env, os.Stderr
	require.NoError(t, owner.Start())
	t.Cleanup(func() { owner.Process.Kill(); owner.Wait() })
	require.NoError(t, worker.Wait())
	require.Equal(t, "bfloat16 [3, 2] 1.5\n", output.String())
}

// writeModel writes a model as Python's save_model does: the file stores one of the tied names embed_tokens and lm_head.
func writeModel(t *testing.T, file string) {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	defer dev.Close()
	values := make([]tensor.BF16, 6)
	for i := range values {
		values[i] = tensor.NewBF16(float32(i) + 1.5)
	}
	embedding, err := tensor.FromSlice(dev, tensor.Shape{3, 2}, values)
	require.NoError(t, err)
	sd := module.NewStateDict()
	defer sd.Close()
	require.NoError(t, sd.Set("model.embed_tokens.weight", embedding))
	require.NoError(t, module.Save(context.Background(), file, sd, module.SaveOptions{}))
}

package nvrtc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/nvrtc"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

func ExampleCompile() {
	const source = `
		template<typename T> __global__ void scale(T *x, T by, int n) {
			int i = blockIdx.x * blockDim.x + threadIdx.x;
			if (i < n) x[i] *= by;
		}`
	binary, err := nvrtc.Compile(context.Background(), "scale.cu", source, nvrtc.Options{
		Arch:  "compute_90",
		Names: []string{"scale<float>"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(strings.Contains(string(binary.Code), ".entry "+binary.Names["scale<float>"]))
	// prints true
}

func ExampleCompileError() {
	_, err := nvrtc.Compile(context.Background(), "broken.cu", "__global__ void k(float *x) {\n  *x = y;\n}", nvrtc.Options{})
	var failed *nvrtc.CompileError
	if errors.As(err, &failed) {
		for _, d := range failed.Diagnostics {
			fmt.Println(d)
		}
	}
	// prints broken.cu:2:8: error: identifier "y" is undefined
}

// The examples print what their comments state.
func TestExamples(t *testing.T) {
	err := nvrtc.Load("")
	drivertest.Needs(t, "nvrtc", err == nil, fmt.Sprint(err))
	require.Equal(t, "true\n", output(t, ExampleCompile))
	require.Regexp(t, `^broken.cu:2:(8:)? error: identifier "y" is undefined\n$`, output(t, ExampleCompileError)) // no column before CUDA 12
}

// output returns the text that f prints.
func output(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	stdout := os.Stdout
	os.Stdout = w
	f()
	os.Stdout = stdout
	require.NoError(t, w.Close())
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(text)
}

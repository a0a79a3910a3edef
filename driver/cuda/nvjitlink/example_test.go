package nvjitlink_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/nvjitlink"
	"github.com/sharedtensor/sharedtensor/driver/cuda/nvrtc"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// linkTwo compiles two sources to LTO-IR and links them.
func linkTwo() (*nvjitlink.Linked, error) {
	ctx := context.Background()
	var inputs []nvjitlink.Input
	for name, source := range map[string]string{
		"kernel.cu":  "__device__ float f(float); extern \"C\" __global__ void k(float *x) { *x = f(*x); }",
		"library.cu": "__device__ float f(float v) { return v + 1; }",
	} {
		binary, err := nvrtc.Compile(ctx, name, source, nvrtc.Options{Arch: "sm_90", Format: nvrtc.LTOIR, Relocatable: true})
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, nvjitlink.LTOIR(name, binary.Code))
	}
	return nvjitlink.Link(ctx, inputs, nvjitlink.Options{Arch: "sm_90"})
}

func ExampleLink() {
	linked, err := linkTwo()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%q\n", linked.Code[:4]) // the start of a cubin
}

// The example links.
func TestExample(t *testing.T) {
	for name, err := range map[string]error{"nvrtc": nvrtc.Load(""), "nvjitlink": nvjitlink.Load("")} {
		drivertest.Needs(t, name, err == nil, fmt.Sprint(err))
	}
	linked, err := linkTwo()
	require.NoError(t, err)
	require.Equal(t, "\x7fELF", string(linked.Code[:4]))
	ExampleLink()
}

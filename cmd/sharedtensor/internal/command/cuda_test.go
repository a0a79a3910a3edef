//go:build linux && !nocuda

package command

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
)

// Two processes share device memory through the stub of libcuda.
func TestCUDA(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.env = append(p.env, cudatest.Options{Devices: 2}.Env(t)...)
	found := examined(t, p.must("doctor", "--json"))
	require.Contains(t, found["CUDA driver"].Detail, "for CUDA 13.0")
	require.Equal(t, "ok", found["cuda:1"].Status)
	require.Equal(t, "ok", found["share cuda:0 by cuda-fd"].Status)
	require.Equal(t, "ok", found["share cuda:0 by cuda-fabric"].Status, "nothing is wrong with a host without a fabric")
	require.Contains(t, found["share cuda:0 by cuda-fabric"].Detail, "not available")

	path := p.model("m.safetensors", 1)
	owner := p.serve("--device", "cuda:0", "m="+path)
	require.NotContains(t, owner.stderr.String(), "level=WARN")
	p.must("get", "m", "-o", p.file("copy.safetensors"))
	require.Equal(t, digests(t, path), digests(t, p.file("copy.safetensors")))
	require.Equal(t, p.described(path, "--digest").Tensors, p.described("m", "--digest").Tensors)
	p.must("publish", "--device", "cuda:0", "m="+p.model("n.safetensors", 2))
	p.must("get", "m", "-o", p.file("copy.safetensors"))
	require.Equal(t, digests(t, p.file("n.safetensors")), digests(t, p.file("copy.safetensors")))

	require.Contains(t, p.fails(cli.ExitFailure, "serve", "--device", "cuda:7", "m="+path), "no device cuda:7: there are 2")
	p.start(p.command("serve", "--device", "cuda:1")).line()
	require.FileExists(t, p.file("shared-tensor-1.sock"), "the device's index is in the default socket")
}

// An owner with --place copies a model to the GPUs for get and place. ls, holders, top and metrics show the copies.
func TestPlacements(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.env = append(p.env, cudatest.Options{Devices: 2}.Env(t)...)
	path := p.model("m.safetensors", 1)
	p.serve("--place", "cuda:0=64MiB,keep=1h", "--place", "host", "m="+path)
	require.Contains(t, p.must("place", "m", "--device", "cuda:0"), "placed m version 1 on cuda:0")
	p.must("get", "m", "--device", "cuda:0", "-o", p.file("copy.safetensors"))
	require.Equal(t, digests(t, path), digests(t, p.file("copy.safetensors")))
	require.Regexp(t, `on cuda:0 .* unused for `, p.must("ls"))
	require.Contains(t, p.must("ls", "--json"), `"placements"`)
	metrics := p.must("metrics")
	for name, value := range map[string]string{"placement_copies_total": "1", "placement_hits_total": "1", "placements": "1", "placement_budget_bytes": "67108864"} {
		require.Regexp(t, `(?m)^sharedtensor_`+name+`\{device="cuda:0",uuid="[^"]+"\} `+value+`$`, metrics)
	}
	require.Regexp(t, `PLACEMENTS(?s:.*)cuda:0 .*64\.0? ?MiB`, p.must("top", "--once"))

	require.Contains(t, p.fails(cli.ExitFailure, "place", "m", "--device", "cuda:1"), "serve --place")
	require.Contains(t, p.fails(cli.ExitUsage, "place", "m"), "--device DEVICE is missing")
	for _, bad := range []string{"gpu", "cuda:0=", "cuda:0=0", "cuda:0=4GiB,keep", "cuda:0=4GiB,keep=-1s", "cuda:0,size=3"} {
		require.Contains(t, p.fails(cli.ExitUsage, "serve", "--place", bad), "use DEVICE", bad)
	}
}

func TestCUDAWithoutDriver(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.env = append(p.env, "SHAREDTENSOR_LIBCUDA="+p.file("none.so"), "SHAREDTENSOR_LIBNVRTC="+p.file("none.so"))
	text := p.fails(cli.ExitFailure, "serve", "--device", "cuda:0", "m="+p.model("m.safetensors", 1))
	require.Contains(t, text, "no CUDA driver library")
	found := examined(t, p.must("doctor", "--json"))
	require.NotEqual(t, "fail", found["CUDA driver"].Status)
	require.Contains(t, found["CUDA driver"].Detail, "none.so")
	require.Equal(t, "ok", found["NVRTC"].Status, "a missing compiler is not a problem")
	require.Contains(t, found["NVRTC"].Detail, "SHAREDTENSOR_LIBNVRTC sets its path")
}

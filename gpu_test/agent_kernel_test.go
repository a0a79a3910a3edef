//go:build linux

package gpu_test

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// scaleIn holds the arguments of the owner's endpoint "saxpy", which computes a*x + y with a kernel on the caller's
// memory.
type scaleIn struct {
	A    float32
	X, Y *tensor.Tensor
}

// endpoints returns the functions of an owner.
func (a *agent) endpoints() *endpoint.Registry {
	r := endpoint.NewRegistry()
	err := endpoint.Register(r, "saxpy", func(_ context.Context, in scaleIn) (*tensor.Tensor, error) {
		out, err := tensor.Zeros(a.dev, tensor.Float32, in.Y.Shape())
		if err != nil {
			return nil, err
		}
		if err = out.CopyFrom(in.Y); err == nil {
			err = a.saxpy(in.A, in.X, out)
		}
		if err != nil {
			out.Close()
			return nil, err
		}
		return out, nil
	})
	if err != nil {
		panic(err)
	}
	return r
}

// saxpy runs the kernel y = a*x + y on two tensors.
func (a *agent) saxpy(by float32, x, y *tensor.Tensor) error {
	if a.share.kernel == nil {
		mod, err := a.dev.LoadModule([]byte(kernelsPTX)) // loaded until the process ends
		if err != nil {
			return err
		}
		if a.share.kernel, err = mod.Function("saxpy"); err != nil {
			return err
		}
	}
	n := y.NumElements()
	cfg := cuda.LaunchConfig{Grid: cuda.Dim3{X: uint32((n + 255) / 256)}, Block: cuda.Dim3{X: 256}}
	if err := a.share.kernel.Launch(cfg, by, x, y, int(n)); err != nil {
		return err
	}
	return a.dev.Synchronize()
}

// launchOn runs a kernel that reads the first attached tensor from the owner's memory and writes twice its values to
// memory of this process. It compares the result with Go's.
func (a *agent) launchOn(sd *module.StateDict) (string, error) {
	for name, t := range sd.All() {
		out, err := tensor.FromSlice(a.dev, t.Shape(), make([]float32, t.NumElements()))
		if err != nil {
			return "", err
		}
		defer out.Close()
		if err := a.saxpy(2, t, out); err != nil {
			return "", err
		}
		in, err := tensor.Float32s(t)
		if err != nil {
			return "", err
		}
		got, err := tensor.Float32s(out)
		if err != nil {
			return "", err
		}
		for i := range in {
			if got[i] != 2*in[i] {
				return "", fmt.Errorf("%s: element %d is %v, not %v", name, i, got[i], 2*in[i])
			}
		}
		return name, nil
	}
	return "", fmt.Errorf("no tensors")
}

// callOwner calls the endpoint with tensors in this process's GPU memory and checks the result, which is in the owner's
// memory.
func (a *agent) callOwner(ctx context.Context) error {
	const n = 1000
	xs, ys := noise(n, 5), noise(n, 6)
	x, err := tensor.FromSlice(a.dev, tensor.Shape{n}, xs)
	if err != nil {
		return err
	}
	defer x.Close()
	y, err := tensor.FromSlice(a.dev, tensor.Shape{n}, ys)
	if err != nil {
		return err
	}
	defer y.Close()
	out, err := endpoint.Call[*tensor.Tensor](ctx, a.share.client, "saxpy", scaleIn{A: 0.5, X: x, Y: y})
	if err != nil {
		return err
	}
	defer out.Close()
	if _, ok := out.Storage().Memory().(*cuda.Memory); !ok {
		return fmt.Errorf("the result is on device %v", out.Device().Info())
	}
	got, err := tensor.Float32s(out)
	if err != nil {
		return err
	}
	for i := range got {
		if want := 0.5*xs[i] + ys[i]; got[i]-want > 1e-6 || want-got[i] > 1e-6 {
			return fmt.Errorf("element %d is %v, not %v", i, got[i], want)
		}
	}
	after, err := tensor.Float32s(y)
	if err != nil {
		return err
	}
	for i := range after {
		if after[i] != ys[i] {
			return fmt.Errorf("the call changed its argument")
		}
	}
	return nil
}

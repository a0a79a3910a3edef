//go:build !nocuda

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/tensor"
)

const (
	gpuOwnerEnv  = "SHAREDTENSOR_TEST_GPU_OWNER"
	gpuCallerEnv = "SHAREDTENSOR_TEST_GPU_CALLER"
)

func init() {
	children = append(children, func() error {
		if socket := os.Getenv(gpuOwnerEnv); socket != "" {
			return runGPUOwner(socket)
		}
		if socket := os.Getenv(gpuCallerEnv); socket != "" {
			return runGPUCaller(socket)
		}
		return nil
	})
}

// runGPUOwner serves functions whose results are on host memory and two GPUs.
func runGPUOwner(socket string) error {
	hostDevice, err := cli.OpenHost()
	if err != nil {
		return err
	}
	devices := []driver.Device{hostDevice}
	r := &endpoint.Registry{}
	for i := range 2 {
		dev, err := cli.OpenDevice(fmt.Sprintf("cuda:%d", i))
		if err != nil {
			return err
		}
		devices = append(devices, dev)
	}
	for i, dev := range devices {
		err := endpoint.Register(r, fmt.Sprintf("on %d", i), func(context.Context, struct{}) (*tensor.Tensor, error) {
			return tensor.FromSlice(dev, tensor.Shape{2}, []float32{float32(i), 2})
		})
		if err != nil {
			return err
		}
	}
	if err := endpoint.Register(r, "number", func(context.Context, struct{}) (int, error) { return 7, nil }); err != nil {
		return err
	}
	s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: socket, Devices: devices, Registry: r})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		stop()
	}()
	if err := s.Serve(ctx); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// runGPUCaller calls each function, as the command call does, and prints the number of open GPUs after each.
func runGPUCaller(socket string) error {
	var mu sync.Mutex
	opened := map[driver.UUID]int{}
	openGPU = func(uuid driver.UUID) (driver.Device, error) {
		mu.Lock()
		opened[uuid]++
		mu.Unlock()
		return cli.OpenCUDAUUID(uuid)
	}
	c := &cobra.Command{Use: "call"}
	o := cli.AddOwnerFlags(c)
	if err := c.Flags().Parse([]string{"--socket", socket, "--wait"}); err != nil {
		return err
	}
	var counts []int
	err := withCaller(context.Background(), o, func(ctx context.Context, on *caller) error {
		for _, name := range []string{"number", "on 0", "number", "on 2", "on 2", "on 1"} {
			var v any
			if err := on.client.Call(ctx, name, nil, &v); err != nil {
				return err
			}
			if x, ok := v.(*tensor.Tensor); ok {
				values, err := tensor.Float32s(x)
				if err != nil {
					return err
				}
				if fmt.Sprintf("on %v", values[0]) != name || values[1] != 2 {
					return fmt.Errorf("%s returned %v", name, values)
				}
			}
			if err := closeTensors(v); err != nil {
				return err
			}
			counts = append(counts, len(opened))
		}
		return nil
	})
	for uuid, n := range opened {
		if n != 1 {
			return fmt.Errorf("GPU %s was opened %d times", uuid, n)
		}
	}
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(counts); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// A call opens only the GPUs that hold its tensors.
func TestCallOpensOnlyNeededGPUs(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	env := slices.Concat(p.env, cudatest.Options{Devices: 2}.Env(t))
	child := func(role string) (*exec.Cmd, *bytes.Buffer) {
		c := exec.Command(os.Args[0])
		c.Env = append(slices.Clone(env), role+"="+p.socket())
		var log bytes.Buffer
		c.Stderr = &log
		return c, &log
	}
	owner, ownerLog := child(gpuOwnerEnv)
	stdin, err := owner.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	defer func() {
		stdin.Close()
		require.NoError(t, owner.Wait(), ownerLog)
	}()
	caller, log := child(gpuCallerEnv)
	out, err := caller.Output()
	require.NoError(t, err, "%s %s", log, ownerLog)
	require.JSONEq(t, "[0, 0, 0, 1, 1, 2]", string(out))
}

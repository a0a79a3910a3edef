package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// resultBytes is the size of the result of the endpoint "zeros".
const resultBytes = 64 << 20

// ownerMain is the main function of an owner with default options. It answers each line with the size of its heap.
func ownerMain(a assignment, send func(report), next func() bool) error {
	real, err := host.Open()
	if err != nil {
		return err
	}
	var dev driver.Device = real
	if a.Memory > 0 {
		dev = smallHost{real, a.Memory}
	}
	registry, err := endpoints(real)
	if err != nil {
		return err
	}
	if err := a.confine(); err != nil {
		return err
	}
	s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: a.Socket, Devices: []driver.Device{dev}, Registry: registry})
	if err != nil {
		return err
	}
	go func() { _ = s.Serve(context.Background()) }() // ends with the process
	send(report{Ready: true})
	for next() {
		runtime.GC()
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		send(report{Heap: int64(m.HeapAlloc)})
	}
	return nil
}

// smallHost is a host device that reports a smaller memory, from which an owner derives its default limits.
type smallHost struct {
	*host.Device
	bytes int64
}

// MemoryLimit returns the configured size.
func (d smallHost) MemoryLimit() (bytes int64, why string) { return d.bytes, "the attack's choice" }

// confine sets the limits of this process.
func (a assignment) confine() error {
	if a.Files > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: a.Files, Max: a.Files}); err != nil {
			return fmt.Errorf("limit of descriptors: %w", err)
		}
	}
	if a.Address > 0 {
		has, err := addressSpace()
		if err != nil {
			return err
		}
		if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: has + a.Address, Max: has + a.Address}); err != nil {
			return fmt.Errorf("limit of address space: %w", err)
		}
	}
	if a.Group != "" {
		return os.WriteFile(filepath.Join(a.Group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	}
	return nil
}

// addressSpace returns the size of the process's address space in bytes.
func addressSpace() (uint64, error) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	pages, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseUint(pages, 10, 64)
	return n * uint64(os.Getpagesize()), err
}

// endpoints returns the endpoints that clients call.
func endpoints(dev driver.Device) (*endpoint.Registry, error) {
	r := endpoint.NewRegistry()
	zeros := func(_ context.Context, _ int) (*tensor.Tensor, error) {
		return tensor.Zeros(dev, tensor.Uint8, tensor.Shape{resultBytes})
	}
	return r, errors.Join(
		endpoint.Register(r, "zeros", zeros, endpoint.Cached()),
		endpoint.Register(r, "managed", zeros, endpoint.Managed(), endpoint.NoCache()),
		endpoint.RegisterStream(r, "items", func(ctx context.Context, n int) iter.Seq2[*tensor.Tensor, error] {
			return func(yield func(*tensor.Tensor, error) bool) {
				for yield(zeros(ctx, n)) {
				}
			}
		}),
		endpoint.Register(r, "wait", func(ctx context.Context, _ string) (int, error) {
			<-ctx.Done()
			return 0, context.Cause(ctx)
		}),
		endpoint.Register(r, "fail", func(_ context.Context, text string) (int, error) { return 0, errors.New(text) }),
		endpoint.Register(r, "digest", func(ctx context.Context, t *tensor.Tensor) (string, error) {
			d, err := module.TensorDigest(ctx, t)
			return d.String(), err
		}),
	)
}

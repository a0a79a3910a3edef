package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// resultBytes is the size of the result of the endpoint "zeros".
const resultBytes = 64 << 20

// assignment is the configuration of an owner and its clients.
type assignment struct {
	Socket string
	Attack string        // name of the attack
	Scale  float64       // scale of the attack, above 0 and at most 1
	Hold   time.Duration // time for which the attacker holds its resources
	// Limits of the owner.
	Files   uint64 // RLIMIT_NOFILE
	Address uint64 // RLIMIT_AS, in addition to the address space in use at the start
	Memory  int64  // memory size that the owner's device reports
	Group   string // control group of the owner
}

// role registers a role without state. Warnings of owners and clients are expected here.
func role[S any](name string) *proctest.Role[S] {
	return proctest.NewRole(name, nil, func() (*S, error) {
		slog.SetDefault(slog.New(slog.DiscardHandler))
		return new(S), nil
	})
}

// The role of an owner with default options.
var (
	ownerRole = role[struct{}]("owner")
	openOwner = proctest.NewOp(ownerRole, "open", func(_ *struct{}, a assignment) (bool, error) { return true, serve(a) })
	ownerHeap = proctest.NewOp(ownerRole, "heap", func(*struct{}, bool) (int64, error) {
		runtime.GC()
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc), nil
	})
)

// serve starts an owner, which ends with the process.
func serve(a assignment) error {
	dev, err := host.Open()
	if err != nil {
		return err
	}
	registry, err := endpoints(dev)
	if err != nil {
		return err
	}
	if err := a.confine(); err != nil {
		return err
	}
	s, err := endpoint.NewServer(endpoint.ServerOptions{Socket: a.Socket, Devices: []driver.Device{smallHost{dev, a.Memory}}, Registry: registry})
	if err != nil {
		return err
	}
	go func() { _ = s.Serve(context.Background()) }() // ends with the process
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

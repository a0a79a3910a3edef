//go:build linux

package gpu_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
	"github.com/sharedtensor/sharedtensor/gpu_test/internal/machine"
)

// Values of GPU_TEST. If it is not set, tests use a GPU if there is one.
const (
	gateVariable = "GPU_TEST"
	gateRequire  = "require"
	gateFake     = "fake"
)

// onFake reports whether the tests use the stand-in. The facts of such a run describe the stand-in.
func onFake() bool { return os.Getenv(gateVariable) == gateFake }

// fakeOptions configures the stand-in. Its memory is host memory, so large slabs are tested on real devices only.
var fakeOptions = cudatest.Options{Memory: 768 << 20}

// skip skips a test that cannot run on this machine. With GPU_TEST=require it fails the test.
func skip(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv(gateVariable) == gateRequire {
		tb.Fatalf("GPU_TEST=require: "+format, args...)
	}
	tb.Skipf(format, args...)
}

// here describes this machine.
var here = sync.OnceValue(machine.Detect)

// cannot skips a test that this machine cannot run. With GPU_TEST=require it fails the test, unless the machine has a limit
// that explains it: a container, WSL or MIG. The report lists skipped tests with their reasons.
func cannot(tb testing.TB, format string, args ...any) {
	tb.Helper()
	limits := here().Limits()
	if limits == "" {
		skip(tb, format, args...)
		return
	}
	tb.Skipf("not on this machine, "+limits+": "+format, args...)
}

// realOnly skips a test whose result on the stand-in has no meaning.
func realOnly(tb testing.TB, why string) {
	tb.Helper()
	if onFake() {
		tb.Skip("says nothing on the stand-in: " + why)
	}
}

// needGPU skips the test if there is no GPU, or fails it with GPU_TEST=require. The reason is the typed error that
// programs receive. With GPU_TEST=fake it sets up the stand-in: the library that SHAREDTENSOR_LIBCUDA names, or one
// that it builds.
func needGPU(tb testing.TB) {
	tb.Helper()
	if onFake() && (os.Getenv("SHAREDTENSOR_LIBCUDA") == "" || fake.started) {
		fake.started = true
		cudatest.Start(tb, fakeOptions).Leaks(tb)
	}
	_, err := cuda.Devices()
	if errors.Is(err, errors.ErrUnsupported) {
		skip(tb, "no GPU: %v", err)
	}
	require.NoError(tb, err)
	aboutOnce.Do(printAbout)
}

// fake records that this process, and not its parent, has set up the stand-in.
var fake struct{ started bool }

// openDevice opens the first GPU, or skips the test. The device is closed when the test ends.
func openDevice(tb testing.TB, opts ...cuda.Option) *cuda.Device {
	tb.Helper()
	needGPU(tb)
	dev, err := cuda.Open(0, opts...)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, dev.Close()) })
	return dev
}

// keep closes x when the test ends.
func keep[T interface{ Close() error }](tb testing.TB, x T, err error) T {
	tb.Helper()
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, x.Close()) })
	return x
}

// noLimits is the fact of a machine without limits.
const noLimits = "no limits"

var aboutOnce sync.Once

// printAbout prints the GPU, driver and library that the facts describe. FACTS.md accepts a log only if its library is
// the driver's.
func printAbout() {
	library := cu.Path()
	if onFake() {
		library = standIn
	}
	record("library", "%s", library)
	record("date", "%s", time.Now().UTC().Format(time.DateOnly))
	if infos, err := cuda.Devices(); err == nil && len(infos) > 0 {
		record("gpu", "%s, %s", infos[0].Name, formatBytes(infos[0].TotalBytes))
	}
	if v, err := cuda.DriverVersion(); err == nil {
		record("cuda", "%s", v)
	}
	record("driver", "%s", cmp.Or(here().Driver, "unknown"))
	record("machine", "%s", cmp.Or(here().Limits(), noLimits))
}

// standIn is the name of the library in a log of the stand-in.
const standIn = "the stand-in"

// kindsHere returns the handle kinds that work between processes on this GPU.
func kindsHere(tb testing.TB, dev *cuda.Device) []driver.HandleKind {
	tb.Helper()
	var kinds []driver.HandleKind
	for _, s := range dev.Probe() {
		if s.Err == nil {
			kinds = append(kinds, s.Kind)
		} else {
			require.ErrorIs(tb, s.Err, errors.ErrUnsupported, s.Kind)
		}
	}
	return kinds
}

// formatBytes formats n with a binary unit.
func formatBytes(n int64) string {
	switch {
	case n >= 1<<30 && n%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n%(1<<20) == 0 || n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

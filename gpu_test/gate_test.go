//go:build linux

package gpu_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cudatest"
)

// What GPU_TEST can say; without it, a GPU is used if there is one.
const (
	gateVariable = "GPU_TEST"
	gateRequire  = "require"
	gateFake     = "fake"
)

// onFake reports whether the stand-in is to be used: the facts that are printed then are about the stand-in.
func onFake() bool { return os.Getenv(gateVariable) == gateFake }

// fakeOptions are what the stand-in is like. Its bytes are real memory, so large slabs are left to real devices.
var fakeOptions = cudatest.Options{Memory: 768 << 20}

// skip ends a test that cannot be run here. Where a GPU is required that is a failure.
func skip(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv(gateVariable) == gateRequire {
		tb.Fatalf("GPU_TEST=require: "+format, args...)
	}
	tb.Skipf(format, args...)
}

// realOnly ends a test that says nothing on the stand-in.
func realOnly(tb testing.TB, why string) {
	tb.Helper()
	if onFake() {
		tb.Skip("says nothing on the stand-in: " + why)
	}
}

// needGPU skips the test, or fails it, where there is no GPU; the reason is the typed error that a program gets. With
// GPU_TEST=fake it sets up the stand-in: the one that SHAREDTENSOR_LIBCUDA names, or one that it builds.
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

// fake remembers that this process, not who started it, chose the stand-in.
var fake struct{ started bool }

// openDevice opens the first GPU for the test, or skips it. The device is closed at the end.
func openDevice(tb testing.TB, opts ...cuda.Option) *cuda.Device {
	tb.Helper()
	needGPU(tb)
	dev, err := cuda.Open(0, opts...)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, dev.Close()) })
	return dev
}

// keep closes x at the end of the test.
func keep[T interface{ Close() error }](tb testing.TB, x T, err error) T {
	tb.Helper()
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, x.Close()) })
	return x
}

var aboutOnce sync.Once

// printAbout prints what the facts are about. FACTS.md takes them from the log only if library says the driver's own.
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
	record("driver", "%s", driverVersion())
}

// standIn is the name of the library in a log of the stand-in.
const standIn = "the stand-in"

// driverVersion is the version of the kernel's driver, which libcuda has to match.
func driverVersion() string {
	for _, path := range []string{"/sys/module/nvidia/version", "/proc/driver/nvidia/version"} {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// NVRM version: NVIDIA UNIX ... Kernel Module  580.95.05  Release Build ..., or the number alone.
		for _, word := range strings.Fields(string(data)) {
			if strings.Count(word, ".") >= 1 && strings.Trim(word, "0123456789.") == "" {
				return word
			}
		}
	}
	return "unknown"
}

// kindsHere are the kinds of handle that work between processes on this GPU.
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

// formatBytes is a size for people.
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

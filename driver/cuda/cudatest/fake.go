// Package cudatest builds a stand-in for the CUDA driver from embedded C sources and runs tests on it, without a GPU.
// It works in tests of any module.
//
// A process loads the driver's library once, so [Start] must precede the first CUDA call, and all tests of a package
// share one configuration:
//
//	func TestAlloc(t *testing.T) {
//		fake := cudatest.Start(t, cudatest.Options{Devices: 2, Memory: 64 << 20})
//		fake.Leaks(t)
//		dev, err := cuda.Open(0)
//		if err != nil {
//			t.Fatal(err)
//		}
//		defer dev.Close()
//		if _, err := dev.AllocMemory(128 << 20); !errors.Is(err, driver.ErrOutOfMemory) {
//			t.Fatal(err)
//		}
//	}
//
// Programs that the tests start inherit the library through environment variables. [Options.Env] returns the variables
// for a program that needs another configuration.
//
// The package needs a C compiler (cc, or the value of CC). Without one, tests that need the library are skipped, or
// fail if SHAREDTENSOR_REQUIRE_CC=1 is set.
package cudatest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Fake controls the library in this process: it counts live objects and makes calls fail.
type Fake struct {
	control *os.File
	options Options
}

var started struct {
	mu   sync.Mutex
	fake *Fake
}

// Start makes this process, and the programs that it starts, use the library with the given options, at most one. It
// skips or fails the test like [Build]. The library stays loaded until the process ends, so a second Start with other
// options fails the test.
func Start(tb testing.TB, options ...Options) *Fake {
	tb.Helper()
	var o Options
	if len(options) > 1 {
		tb.Fatalf("%d options, at most one is used", len(options))
	}
	if len(options) == 1 {
		o = options[0]
	}
	started.mu.Lock()
	defer started.mu.Unlock()
	if started.fake != nil {
		if !reflect.DeepEqual(started.fake.options, o) {
			tb.Fatalf("libcuda is loaded with the options %+v, not %+v", started.fake.options, o)
		}
		return started.fake
	}
	if path := cu.Path(); path != "" {
		tb.Fatalf("%s is already loaded", path)
	}
	f := &Fake{options: o}
	for _, v := range o.Env(tb) {
		name, value, _ := strings.Cut(v, "=")
		if err := os.Setenv(name, value); err != nil {
			tb.Fatal(err)
		}
	}
	if err := f.makeControl(); err != nil {
		tb.Fatal(err)
	}
	if err := cu.Load(""); err != nil {
		tb.Fatal(err)
	}
	started.fake = f
	return f
}

// makeControl creates the shared page that the library opens by name. The name is removed after the first call, when
// the library has opened it.
func (f *Fake) makeControl() error {
	dir, err := os.MkdirTemp("", "fakecuda-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	prefix := filepath.Join(dir, "control")
	f.control, err = os.OpenFile(fmt.Sprintf("%s.%d", prefix, os.Getpid()), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := f.control.Truncate(4096); err != nil {
		return err
	}
	if err := os.Setenv("FAKECUDA_CONTROL", prefix); err != nil {
		return err
	}
	if err := cu.Load(""); err != nil {
		return err
	}
	cu.Init(^uint32(0)) // fails, but makes the library read the environment
	if _, err := f.control.ReadAt(make([]byte, 8), 0); err != nil {
		return err
	}
	if !bytes.Equal(f.bytes(0, 8), []byte("FAKECUDA")) {
		return fmt.Errorf("%s is not the stand-in, or does not see the environment", cu.Path())
	}
	return nil
}

// Offsets in struct control of fake.h.
const (
	offCalls, offFailAfter, offFailCode, offFailed, offLive = 8, 16, 24, 32, 40

	kinds         = 12
	offLastFailed = offLive + 8*kinds
	offFailName   = offLastFailed + 64
)

var kindNames = [kinds]string{"allocations", "mappings", "reservations", "handles", "ipc", "streams", "events", "contexts", "modules",
	"graphs", "pools", "host"}

func (f *Fake) bytes(off, n int64) []byte {
	b := make([]byte, n)
	if _, err := f.control.ReadAt(b, off); err != nil {
		panic(fmt.Sprintf("the library's control page: %v", err))
	}
	return b
}

func (f *Fake) number(off int64) int64 { return int64(binary.LittleEndian.Uint64(f.bytes(off, 8))) }

func (f *Fake) write(off int64, b []byte) {
	if _, err := f.control.WriteAt(b, off); err != nil {
		panic(fmt.Sprintf("the library's control page: %v", err))
	}
}

func (f *Fake) set(off, v int64) { f.write(off, binary.LittleEndian.AppendUint64(nil, uint64(v))) }

// Live counts, by kind, the objects that this process made with the library and has not released: allocations,
// mappings, reservations, handles (of cuMemCreate), ipc (opened handles), streams, events, contexts (retained or
// created), modules, graphs (also instantiated), pools and host (pinned memory). Kinds without objects are not in the
// map.
func (f *Fake) Live() map[string]int64 {
	live := map[string]int64{}
	for i, name := range kindNames {
		if n := f.number(offLive + int64(i)*8); n != 0 {
			live[name] = n
		}
	}
	return live
}

// Leaks records the live objects and compares them at the end of the test, after the cleanups that the test registers
// later.
func (f *Fake) Leaks(tb testing.TB) {
	tb.Helper()
	before := f.Live()
	tb.Cleanup(func() {
		f.FailNone()
		if after := f.Live(); !reflect.DeepEqual(before, after) {
			tb.Errorf("leaked CUDA objects: %v before the test, %v after", before, after)
		}
	})
}

// Calls returns the number of calls into the library so far. It excludes calls that only read tables (cuGetErrorName,
// cuGetErrorString, cuDriverGetVersion, cuGetProcAddress).
func (f *Fake) Calls() int64 { return f.number(offCalls) }

// FailCall makes the k-th counted call after it fail with code. The next call is number 1.
func (f *Fake) FailCall(k int64, code cu.Result) { f.FailFunction("", k, code) }

// FailFunction makes the k-th call of the named function after it, such as cuMemMap, fail with code. A version suffix
// may be omitted. The empty name matches any function.
func (f *Fake) FailFunction(name string, k int64, code cu.Result) {
	f.set(offFailAfter, 0)
	f.write(offFailName, append([]byte(name), make([]byte, 64-len(name))...))
	f.set(offFailCode, int64(code))
	f.set(offFailed, 0)
	f.set(offFailAfter, k)
}

// FailEvery makes every call of the named function fail with code until FailNone. The empty name matches any function.
func (f *Fake) FailEvery(name string, code cu.Result) { f.FailFunction(name, -1, code) }

// FailNone cancels the failures that were set.
func (f *Fake) FailNone() { f.set(offFailAfter, 0) }

// Failed returns the function that was made to fail since the last FailCall or FailFunction. It is empty if there was
// none.
func (f *Fake) Failed() string {
	if f.number(offFailed) == 0 {
		return ""
	}
	b := f.bytes(offLastFailed, 64)
	if i := slices.Index(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

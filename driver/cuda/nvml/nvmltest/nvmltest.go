// Package nvmltest builds a stand-in for libnvidia-ml from embedded C source, for tests without a GPU. It works in tests of any
// module.
//
//	fake := nvmltest.Start(t, nvmltest.Options{Devices: 2, Processes: []nvmltest.Process{{Device: 1, PID: 77, Bytes: 1 << 30}}})
//
// The package needs a C compiler (cc, or the value of CC). Without one, tests are skipped, or fail if SHAREDTENSOR_REQUIRE_CC=1
// is set. It implements the functions that the typed layer of package nvml uses.
package nvmltest

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sharedtensor/sharedtensor/driver/cuda/nvml"
)

//go:embed libnvidia-ml/nvml.c
var source string

// Process is a process that holds memory of a device.
type Process struct {
	// Device is the index of the GPU.
	Device int
	// PID is the process id.
	PID int
	// Bytes is the memory that it holds. -1 means that the driver does not report it.
	Bytes int64
	// Uses are the kinds of its contexts. 0 means compute.
	Uses nvml.Uses
}

// Options describe the GPUs of the stand-in.
type Options struct {
	// Devices is the number of GPUs, at most 8. 0 means 1.
	Devices int
	// UUIDs are their UUIDs, such as GPU-....
	UUIDs []string
	// Memory is the memory of each in bytes. 0 means 64 GiB.
	Memory int64
	// Processes are the processes that hold memory.
	Processes []Process
	// MIG divides each GPU into two MIG devices. Processes belong to the first and the second in turn.
	MIG bool
	// Fail makes a C function fail with a code. The key "nvmlDeviceGetName@1" is the function on GPU 1 only, and "*@1" all
	// functions on GPU 1.
	Fail map[string]nvml.Result
	// Old omits functions that drivers before 470 lack.
	Old bool
}

// Fake is the stand-in of a test.
type Fake struct {
	// Library is the path of the library.
	Library   string
	processes string
}

// Start builds the library and loads it into this process. A process loads the library once, so tests of one package share it.
// The options apply until the end of the test.
func Start(tb testing.TB, o Options) *Fake {
	tb.Helper()
	f := build(tb, o)
	for _, e := range f.env(tb, o) {
		name, value, _ := strings.Cut(e, "=")
		tb.Setenv(name, value)
	}
	if err := nvml.Load(f.Library); err != nil {
		tb.Fatal(err)
	}
	return f
}

// Env returns os.Environ with the variables that make a program use the stand-in.
func (o Options) Env(tb testing.TB) []string {
	tb.Helper()
	f := build(tb, o)
	return append(os.Environ(), f.env(tb, o)...)
}

// SetProcesses replaces the processes that hold memory.
func (f *Fake) SetProcesses(tb testing.TB, list []Process) {
	tb.Helper()
	var b strings.Builder
	for _, p := range list {
		uses := strings.ReplaceAll(p.Uses.String(), "+", "")
		if uses == "" {
			uses = "C"
		}
		fmt.Fprintln(&b, p.Device, p.PID, p.Bytes, uses)
	}
	if err := os.WriteFile(f.processes, []byte(b.String()), 0o600); err != nil {
		tb.Fatal(err)
	}
}

func (f *Fake) env(tb testing.TB, o Options) []string {
	f.processes = filepath.Join(tb.TempDir(), "processes")
	f.SetProcesses(tb, o.Processes)
	env := []string{"SHAREDTENSOR_LIBNVIDIA_ML=" + f.Library, "FAKENVML_PROCESSES=" + f.processes, "FAKENVML_UUIDS=" + strings.Join(o.UUIDs, ",")}
	set := func(condition bool, name string, value any) {
		text := ""
		if condition {
			text = fmt.Sprint(value)
		}
		env = append(env, name+"="+text)
	}
	set(o.Devices > 0, "FAKENVML_DEVICES", o.Devices)
	set(o.Memory > 0, "FAKENVML_MEMORY", o.Memory)
	set(o.MIG, "FAKENVML_MIG", 1)
	var fail []string
	for _, function := range slices.Sorted(maps.Keys(o.Fail)) {
		fail = append(fail, fmt.Sprint(function, "=", int32(o.Fail[function])))
	}
	return append(env, "FAKENVML_FAIL="+strings.Join(fail, ","))
}

// builds are the libraries that this process has compiled, by variant.
var builds = map[bool]func() (string, error){
	false: sync.OnceValues(func() (string, error) { return compile() }),
	true:  sync.OnceValues(func() (string, error) { return compile("-DFAKENVML_OLD") }),
}

func build(tb testing.TB, o Options) *Fake {
	tb.Helper()
	name := os.Getenv("CC")
	if name == "" {
		name = "cc"
	}
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv("SHAREDTENSOR_REQUIRE_CC") == "1" {
			tb.Fatal(err)
		}
		tb.Skipf("SKIPPED, NOT TESTED: the stand-in for libnvidia-ml needs a C compiler (SHAREDTENSOR_REQUIRE_CC=1 makes this a failure): %v", err)
	}
	path, err := builds[o.Old]()
	if err != nil {
		tb.Fatalf("the stand-in for libnvidia-ml: %v", err)
	}
	return &Fake{Library: path}
}

// compile compiles the library into the user's cache folder, or reuses an earlier build. It writes to a temporary file and
// renames it, because several test binaries may build at the same time.
func compile(defines ...string) (string, error) {
	name := os.Getenv("CC")
	if name == "" {
		name = "cc"
	}
	args := append([]string{"-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-x", "c"}, defines...)
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	key := sha256.Sum256([]byte(strings.Join(append(args, name, runtime.GOARCH, source), "\x00")))
	dir := filepath.Join(cache, "sharedtensor-fakenvml", hex.EncodeToString(key[:12]))
	out := filepath.Join(dir, "libnvidia-ml.so.1")
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	tmp, err := os.CreateTemp(dir, "build-*")
	if err != nil {
		return "", err
	}
	tmp.Close()
	defer func() { _ = os.Remove(tmp.Name()) }() // best effort: gone after the rename
	cmd := exec.Command(name, append(args, "-o", tmp.Name(), "-")...)
	cmd.Stdin = strings.NewReader(source)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", name, err, text)
	}
	return out, os.Rename(tmp.Name(), out)
}

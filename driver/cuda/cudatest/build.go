package cudatest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// flags are what the library is compiled with. It compiles without warnings, which a test sees to; a warning of a
// compiler that is not known here yet does not stop everybody's tests.
var flags = []string{"-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra",
	"-Wl,-soname,libcuda.so.1"}

// Build compiles the library, or finds it where it was compiled before, and returns its path. It skips the test where
// there is no C compiler, or fails it if SHAREDTENSOR_REQUIRE_CC=1 is set. Each of defines becomes a -D of the
// compiler; FAKECUDA_OLD leaves out what only drivers from CUDA 13 on have.
func Build(tb testing.TB, defines ...string) string {
	tb.Helper()
	path, err := buildOnce(defines)
	switch {
	case errors.Is(err, errNoCompiler) && os.Getenv("SHAREDTENSOR_REQUIRE_CC") != "1":
		tb.Skipf("SKIPPED, NOT TESTED: the stand-in for libcuda needs a C compiler (SHAREDTENSOR_REQUIRE_CC=1 makes this a failure): %v", err)
	case err != nil:
		tb.Fatalf("the stand-in for libcuda: %v", err)
	}
	return path
}

// built keeps what a build came to, also an error: a library that does not compile is not tried for each test.
var built sync.Map

type result struct {
	path string
	err  error
}

func buildOnce(defines []string) (string, error) {
	do, _ := built.LoadOrStore(strings.Join(defines, ","), sync.OnceValue(func() result {
		path, err := build(defines)
		return result{path, err}
	}))
	r := do.(func() result)()
	return r.path, r.err
}

var errNoCompiler = errors.New("no C compiler")

func build(defines []string) (string, error) {
	if runtime.GOOS != "linux" {
		return "", fmt.Errorf("%w for it on %s", errNoCompiler, runtime.GOOS)
	}
	name := os.Getenv("CC")
	if name == "" {
		name = "cc"
	}
	cc, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoCompiler, err)
	}
	dir, err := sources()
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.c"))
	if err != nil {
		return "", err
	}
	args := append([]string(nil), flags...)
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	key, err := fingerprint(append([]string{cc, runtime.GOARCH}, args...), append(files, filepath.Join(dir, "fake.h")))
	if err != nil {
		return "", err
	}
	out := filepath.Join(cacheDir(), key, "libcuda.so.1")
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	return out, compile(cc, append(args, files...), out)
}

// compile writes beside out and renames: several test binaries may build at the same time.
func compile(cc string, args []string, out string) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(out), "build-*")
	if err != nil {
		return err
	}
	tmp.Close()
	defer func() { _ = os.Remove(tmp.Name()) }() // after the rename there is none
	text, err := exec.Command(cc, append(args, "-o", tmp.Name(), "-ldl", "-lm")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", cc, err, text)
	}
	return os.Rename(tmp.Name(), out)
}

func cacheDir() string {
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "sharedtensor-fakecuda")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("sharedtensor-fakecuda-%d", os.Getuid()))
}

// sources finds the library's sources: above the directory that the test runs in, which is that of its package.
func sources() (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		dir := filepath.Join(at, "driver", "cuda", "testdata")
		if _, err := os.Stat(filepath.Join(dir, "fake.h")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(at)
		if up == at {
			return "", errors.New("driver/cuda/testdata is not above the working directory")
		}
		at = up
	}
}

// fingerprint names a build by everything that goes into it.
func fingerprint(words, files []string) (string, error) {
	h := sha256.New()
	h.Write([]byte(strings.Join(words, "\x00")))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "\x00%s\x00%d\x00", filepath.Base(f), len(text))
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil)[:12]), nil
}

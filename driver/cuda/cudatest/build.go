package cudatest

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// source holds the library's sources, so that tests of other modules can build it too.
//
//go:embed libcuda
var source embed.FS

// flags are the compiler flags of the library. Warnings are not errors here, because an unknown compiler may add new
// ones; a test compiles the library with -Werror.
var flags = []string{"-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra",
	"-Wl,-soname,libcuda.so.1"}

// Build compiles the library, or reuses an earlier build, and returns its path. Without a C compiler it skips the test,
// or fails it if SHAREDTENSOR_REQUIRE_CC=1 is set. Each of defines is passed to the compiler with -D. FAKECUDA_OLD
// omits the functions that CUDA 13 added.
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

// built caches the result of each build, including errors, so a library that does not compile is tried once.
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
		return "", fmt.Errorf("%w for the stand-in on %s", errNoCompiler, runtime.GOOS)
	}
	name := os.Getenv("CC")
	if name == "" {
		name = "cc"
	}
	cc, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoCompiler, err)
	}
	args := append([]string(nil), flags...)
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	key, err := fingerprint(append([]string{cc, runtime.GOARCH}, args...))
	if err != nil {
		return "", err
	}
	out := filepath.Join(cacheDir(), key, "libcuda.so.1")
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	dir, err := os.MkdirTemp("", "fakecuda-src-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }() // best effort: the library is built
	files, err := unpack(dir)
	if err != nil {
		return "", err
	}
	return out, compile(cc, append(args, files...), out)
}

// compile writes to a temporary file and renames it to out, because several test binaries may build at the same time.
func compile(cc string, args []string, out string) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(out), "build-*")
	if err != nil {
		return err
	}
	tmp.Close()
	defer func() { _ = os.Remove(tmp.Name()) }() // best effort: gone after the rename
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

// unpack writes the library's sources to a folder and returns the paths of the files to compile.
func unpack(dir string) (files []string, err error) {
	entries, err := source.ReadDir("libcuda")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		text, err := source.ReadFile("libcuda/" + e.Name())
		if err != nil {
			return nil, err
		}
		path := filepath.Join(dir, e.Name())
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return nil, err
		}
		if filepath.Ext(path) == ".c" {
			files = append(files, path)
		}
	}
	return files, nil
}

// fingerprint identifies a build by the compiler's arguments and the sources.
func fingerprint(words []string) (string, error) {
	h := sha256.New()
	h.Write([]byte(strings.Join(words, "\x00")))
	err := fs.WalkDir(source, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := source.ReadFile(path)
		fmt.Fprintf(h, "\x00%s\x00%d\x00", path, len(text))
		h.Write(text)
		return err
	})
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:12]), nil
}

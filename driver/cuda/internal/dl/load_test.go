//go:build linux && (amd64 || arm64) && !nocuda

package dl

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

const source = `
#include <stdint.h>
int add(const int *a, int b) { return *a + b; }
const char *name(int i) { return i ? "one" : 0; }
int64_t sum(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e, int64_t f, int64_t g, int64_t h) {
	return a == 1 && b == 2 && c == 3 && d == 4 && e == 5 && f == 6 && g == 7 && h == 8 ? -8 : 0;
}
int call(int (*f)(void *, void *), void *payload) { return f(payload, 0); }
`

var errNone = errors.New("no test library")

const (
	fnAdd = iota
	fnName
	fnSum
	fnCall
	fnNone
)

func newLibrary() *Library {
	return New(Config{Title: "test", Env: "DL_TEST_LIBRARY", NoLibrary: errNone, Names: []string{"libdoes-not-exist.so.1", "libdoes-not-exist.so"}, Functions: []Function{
		{"add", "Add", "add"}, {"name", "Name", "name"}, {"sum", "Sum", "sum"}, {"call", "Call", "call"}, {"none", "None", "none_v2"},
	}})
}

// code is the type of a library's result codes.
type code int32

func (c code) String() string    { return codes.ResultName(int32(c)) }
func (c code) Text() string      { return codes.ResultText(int32(c)) }
func (c code) Unsupported() bool { return c == 8 }

var codes = New(Config{Title: "test", ResultType: "testResult", Functions: []Function{{"none", "None", "none"}},
	Results: map[int32]Result{0: {"TEST_SUCCESS", "no error"}, 7: {"TEST_BUSY", "another caller is active"}}})

func TestErrors(t *testing.T) {
	require.NoError(t, Err(codes, code(0)))
	require.EqualError(t, Err(codes, code(7)), "TEST_BUSY (7): another caller is active")
	require.EqualError(t, Err(codes, code(9)), "testResult(9)")
	require.ErrorIs(t, Err(codes, code(7)), Error[code]{Result: 7})
	require.NotErrorIs(t, Err(codes, code(7)), errors.ErrUnsupported)
	require.ErrorIs(t, Err(codes, code(8)), errors.ErrUnsupported)
	require.ErrorIs(t, Err(codes, code(missingCode(0))), errors.ErrUnsupported)
}

func build(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "libx.so")
	compile(t, path)
	return path
}

// compile builds the library at a path.
func compile(t *testing.T, path string, options ...string) {
	cc, err := exec.LookPath("cc")
	needs(t, err)
	text := filepath.Join(t.TempDir(), "x.c")
	require.NoError(t, os.WriteFile(text, []byte(source), 0o600))
	out, err := exec.Command(cc, append([]string{"-shared", "-fPIC", "-o", path, text}, options...)...).CombinedOutput()
	require.NoError(t, err, string(out))
}

// needs skips the test after an error of the C compiler, unless one is promised.
func needs(t *testing.T, err error) {
	if err != nil && os.Getenv("SHAREDTENSOR_REQUIRE_CC") == "1" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip("no C compiler: ", err)
	}
}

func TestCalls(t *testing.T) {
	path := build(t)
	l := newLibrary()
	require.NoError(t, l.Load(path))
	require.NoError(t, l.Load(""))
	require.ErrorContains(t, l.Load("other.so"), "already loaded")
	require.Equal(t, path, l.Path())
	require.Equal(t, path, l.File())
	require.Contains(t, l.Identity(), path)
	a := int32(40)
	require.EqualValues(t, 42, l.Call(fnAdd, uintptr(unsafe.Pointer(&a)), 2))
	require.Equal(t, "one", l.CallString(fnName, 1))
	require.Empty(t, l.CallString(fnName, 0))
	require.EqualValues(t, -8, l.Call(fnSum, 1, 2, 3, 4, 5, 6, 7, 8))
	callback, err := NewCallback(func(payload, _ uintptr) uintptr { return payload + 1 })
	require.NoError(t, err)
	require.EqualValues(t, 8, l.Call(fnCall, callback, 7))

	code := l.Call(fnNone)
	require.Equal(t, "none is missing", l.ResultName(code))
	require.Empty(t, l.ResultText(code))
	var unsupported *UnsupportedError
	require.ErrorAs(t, l.MissingError(code), &unsupported)
	require.Equal(t, "none_v2", unsupported.Symbol)
	require.Equal(t, path, unsupported.Library)
	require.ErrorIs(t, unsupported, errors.ErrUnsupported)
	require.NotErrorIs(t, unsupported, errNone)
	require.NoError(t, l.MissingError(-1))
	require.NoError(t, l.Available("Add"))
	require.Error(t, l.Available("None"))
	require.Error(t, l.Available("other"))
}

// Arguments on a goroutine's stack stay valid when the call grows the stack.
func TestStackGrowth(t *testing.T) {
	l := newLibrary()
	require.NoError(t, l.Load(build(t)))
	var grow func(n int) int32
	grow = func(n int) int32 {
		var pad [128]byte
		if n > 0 {
			return grow(n-1) + int32(pad[n%128])
		}
		a := int32(1)
		return l.Call(fnAdd, uintptr(unsafe.Pointer(&a)), 2)
	}
	for i := range 500 {
		got := make(chan int32)
		go func() { got <- grow(i % 40) }()
		if i%50 == 0 {
			runtime.GC()
		}
		require.EqualValues(t, 3, <-got)
	}
}

// A library that is missing is reported with the names that were tried, and a path in the environment has no fallback.
func TestMissingLibrary(t *testing.T) {
	l := newLibrary()
	code := l.Call(fnAdd)
	err := l.MissingError(code)
	require.ErrorIs(t, err, errNone)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "libdoes-not-exist.so.1, libdoes-not-exist.so; DL_TEST_LIBRARY sets its path")
	require.Empty(t, l.Path())
	require.Empty(t, l.File())

	t.Setenv("DL_TEST_LIBRARY", build(t))
	require.NoError(t, l.Load(""))
	l = newLibrary()
	t.Setenv("DL_TEST_LIBRARY", "/does/not/exist.so")
	err = l.Load("")
	var library *LibraryError
	require.ErrorAs(t, err, &library)
	require.Equal(t, []string{"/does/not/exist.so"}, library.Tried)
}

// A library that exists but cannot be loaded is reported with its own reason, wherever its name is in the list.
func TestFoundButNotLoadable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing, text, dependent := filepath.Join(dir, "missing.so"), filepath.Join(dir, "text.so"), filepath.Join(dir, "dependent.so")
	require.NoError(t, os.WriteFile(text, []byte("no library"), 0o600))
	compile(t, filepath.Join(dir, "gone.so"))
	compile(t, dependent, "-Wl,--no-as-needed", "-L"+dir, "-l:gone.so")
	require.NoError(t, os.Remove(filepath.Join(dir, "gone.so")))
	for name, c := range map[string]struct {
		names  []string
		found  string
		reason string
	}{
		"none":               {[]string{missing, missing + "2"}, "", missing},
		"first":              {[]string{text, missing}, text, "text.so"},
		"last":               {[]string{missing, text}, text, "text.so"},
		"missing dependency": {[]string{missing, dependent}, dependent, "gone.so"},
	} {
		none := errors.New("none")
		_, _, err := Open(&Config{Title: "test", NoLibrary: none, Names: c.names}, "")
		require.ErrorIs(t, err, none, name)
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
		var failed *LibraryError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, c.found, failed.Found, name)
		require.ErrorContains(t, err, c.reason, name)
		require.Equal(t, c.found != "", strings.Contains(err.Error(), "cannot be loaded"), "%s: %v", name, err)
	}
}

// A program that is linked statically with the C library gets an error: dlopen of glibc would crash in it.
func TestStaticProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lib, program := filepath.Join(dir, "lib.so"), filepath.Join(dir, "program")
	compile(t, lib)
	build := exec.Command("go", "build", "-o", program, "-ldflags", "-linkmode=external -extldflags=-static", "./testdata/static")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := build.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("no static C library: %w: %s", err, out)
	}
	needs(t, err)
	out, err = exec.Command(program, lib).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "linked statically")
	require.False(t, isStatic(), "this test is linked dynamically")
}

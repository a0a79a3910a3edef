package nvrtc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/jitcache"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// need skips the test without NVRTC, or fails it if SHAREDTENSOR_REQUIRE promises nvrtc.
func need(t testing.TB) {
	t.Helper()
	err := Load("")
	drivertest.Needs(t, "nvrtc", err == nil, fmt.Sprint(err))
}

// libraryVersion returns the version of the library, which the caller needs: 1000 times the major plus 10 times the minor number.
func libraryVersion(t testing.TB) int {
	t.Helper()
	major, minor, err := Version()
	require.NoError(t, err)
	return 1000*major + 10*minor
}

// withoutColumns removes columns from a message of a library before CUDA 12, which reports lines only.
func withoutColumns(t testing.TB, message string) string {
	t.Helper()
	if libraryVersion(t) >= 12000 {
		return message
	}
	return regexp.MustCompile(`:(\d+):\d+: `).ReplaceAllString(message, ":$1: ")
}

const scale = `
template<typename T> __global__ void scale(T *x, T by, int n) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n) x[i] *= by;
}
extern "C" __global__ void fill(float *x, float value) { x[threadIdx.x] = value; }
`

func TestCompileFormats(t *testing.T) {
	need(t)
	t.Parallel()
	b, err := Compile(t.Context(), "scale.cu", scale, Options{Arch: "compute_90"})
	require.NoError(t, err)
	require.Contains(t, string(b.Code), ".target sm_90")
	require.Contains(t, string(b.Code), ".entry fill(")
	require.NotContains(t, string(b.Code), "\x00")
	require.Empty(t, b.Diagnostics)

	b, err = Compile(t.Context(), "scale.cu", scale, Options{Arch: SM(9, 0), Format: Cubin})
	require.NoError(t, err)
	require.Equal(t, "\x7fELF", string(b.Code[:4]))
	require.EqualValues(t, 190, b.Code[18], "the ELF machine of CUDA")
	require.Equal(t, Cubin, b.Format)

	b, err = Compile(t.Context(), "scale.cu", scale, Options{Arch: SM(9, 0), Format: LTOIR})
	if libraryVersion(t) < 12000 {
		require.ErrorIs(t, err, errors.ErrUnsupported)
	} else {
		require.NoError(t, err)
		require.Greater(t, len(b.Code), 100)
	}

	b, err = Compile(t.Context(), "scale.cu", scale, Options{})
	require.NoError(t, err, "the default architecture")
	require.Contains(t, string(b.Code), ".entry fill(")
}

// Templates are instantiated by name expressions, whose lowered names are the entries of the code.
func TestNameExpressions(t *testing.T) {
	need(t)
	t.Parallel()
	b, err := Compile(t.Context(), "scale.cu", scale, Options{Names: []string{"scale<float>", "scale< double >", "fill"}})
	require.NoError(t, err)
	require.Len(t, b.Names, 3)
	require.Equal(t, "fill", b.Names["fill"])
	require.NotEqual(t, b.Names["scale<float>"], b.Names["scale< double >"])
	for _, lowered := range b.Names {
		require.Contains(t, string(b.Code), ".entry "+lowered+"(")
	}
	_, err = Compile(t.Context(), "scale.cu", scale, Options{Names: []string{"missing<int>"}})
	var failed *CompileError
	require.ErrorAs(t, err, &failed)
	require.Contains(t, failed.Error(), "missing")
}

// Headers in memory are found by their names, and errors in them have their place. Files are read only from IncludeDirs.
func TestHeaders(t *testing.T) {
	need(t)
	t.Parallel()
	const source = "#include \"lib/half.h\"\nextern \"C\" __global__ void k(float *x) { *x = half(*x) FACTOR; }\n"
	headers := map[string]string{"lib/half.h": "#include \"inner.h\"\n__device__ float half(float v) { return v / DIVISOR; }\n", "inner.h": "#define DIVISOR 2\n"}
	b, err := Compile(t.Context(), "k.cu", source, Options{Headers: headers, Defines: map[string]string{"FACTOR": "* 3"}})
	require.NoError(t, err)
	require.Contains(t, string(b.Code), ".entry k(")

	headers["inner.h"] = "\n#define DIVISOR oops\n"
	_, err = Compile(t.Context(), "k.cu", source, Options{Headers: headers, Defines: map[string]string{"FACTOR": ""}})
	var failed *CompileError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "lib/half.h", failed.Diagnostics[0].File)
	require.Equal(t, 2, failed.Diagnostics[0].Line)

	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "lib"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lib/half.h"), []byte("__device__ float half(float v) { return v; }\n"), 0o600))
	_, err = Compile(t.Context(), "k.cu", source, Options{IncludeDirs: []string{dir}, Defines: map[string]string{"FACTOR": "+ 1"}})
	require.NoError(t, err)
	_, err = Compile(t.Context(), filepath.Join(dir, "k.cu"), source, Options{Defines: map[string]string{"FACTOR": "+ 1"}})
	require.ErrorContains(t, err, "could not open source file", "the source's folder is not searched")
}

// Errors have file, line, column and number, warnings are returned with the code, and errors.As finds the library's code.
func TestCompileErrors(t *testing.T) {
	need(t)
	t.Parallel()
	_, err := Compile(t.Context(), "dir/k.cu", "extern \"C\" __global__ void k(float *x) {\n\tint unused;\n\tx[0] = y;\n  x[1] = zz;\n}\n", Options{Arch: "sm_90"})
	require.EqualError(t, err, withoutColumns(t, `dir/k.cu:3:9: error: identifier "y" is undefined (and 1 more error)`))
	var failed *CompileError
	require.ErrorAs(t, err, &failed)
	require.ErrorIs(t, err, Error{Result: ERROR_COMPILATION})
	require.Contains(t, failed.Log, "2 errors detected")
	require.Len(t, failed.Diagnostics, 3)
	want := Diagnostic{File: "dir/k.cu", Line: 4, Column: 10, Severity: SeverityError, Message: `identifier "zz" is undefined`,
		Context: "    x[1] = zz;\n           ^"}
	if libraryVersion(t) < 12000 {
		want.Column, want.Context = 0, ""
	}
	require.Equal(t, want, failed.Diagnostics[1])
	warning := failed.Diagnostics[2]
	require.Equal(t, "177-D", warning.Code)
	require.Equal(t, withoutColumns(t, `dir/k.cu:2:6: warning: variable "unused" was declared but never referenced`), warning.String())

	b, err := Compile(t.Context(), "w.cu", "extern \"C\" __global__ void k() { int unused; }", Options{})
	require.NoError(t, err)
	require.Len(t, b.Diagnostics, 1)
	require.Equal(t, SeverityWarning, b.Diagnostics[0].Severity)

	_, err = Compile(t.Context(), "asm.cu", "extern \"C\" __global__ void k() { asm(\"bogus.f32;\"); }", Options{Arch: "sm_90", Format: Cubin})
	require.ErrorContains(t, err, "bogus")
	require.ErrorAs(t, err, &failed)
	require.Positive(t, failed.Diagnostics[0].Line)
}

func TestBadOptions(t *testing.T) {
	need(t)
	t.Parallel()
	_, err := Compile(t.Context(), "k.cu", scale, Options{Arch: "sm_999"})
	require.ErrorIs(t, err, Error{Result: ERROR_INVALID_OPTION})
	require.ErrorContains(t, err, "nvrtc: k.cu: invalid value for --gpu-architecture")
	_, err = Compile(t.Context(), "k.cu", scale, Options{Extra: []string{"--no-such-option"}})
	require.ErrorContains(t, err, "--no-such-option")
	_, err = Compile(t.Context(), "k.cu", scale, Options{IncludeDirs: []string{"/does/not/exist"}})
	require.NoError(t, err, "as with other compilers, a folder may be missing")
	for _, o := range []Options{{Standard: CPP11}, {Standard: CPP14}, {Standard: CPP17}, {Standard: CPP20}, {LineInfo: true, FastMath: true}, {Debug: true}, {Relocatable: true, MaxRegisters: 32}} {
		if o.Standard == CPP20 && libraryVersion(t) < 12000 {
			continue
		}
		_, err := Compile(t.Context(), "k.cu", scale, o)
		require.NoError(t, err, "%+v", o)
	}
}

// A cache returns code without compiling. Every input of the compilation is part of the key.
func TestCacheHit(t *testing.T) {
	need(t)
	t.Parallel()
	cache, err := jitcache.Open(jitcache.Options{Dir: filepath.Join(t.TempDir(), "jit")})
	require.NoError(t, err)
	dir := t.TempDir()
	header := filepath.Join(dir, "h.h")
	require.NoError(t, os.WriteFile(header, []byte("#define N 1\n"), 0o600))
	type input struct {
		name, source string
		o            Options
	}
	const k = "#include \"h.h\"\ntemplate<int I> __global__ void k(int *x) { int unused; *x = N + I; }"
	base := func() input {
		return input{"k.cu", k, Options{Names: []string{"k<1>"}, Headers: map[string]string{"h.h": "#define N 7\n"}, Cache: cache}}
	}
	compile := func(in input) *Binary {
		t.Helper()
		b, err := Compile(t.Context(), in.name, in.source, in.o)
		require.NoError(t, err)
		return b
	}
	first := compile(base())
	require.False(t, first.Cached)
	second := compile(base())
	require.True(t, second.Cached)
	second.Cached = false
	require.Equal(t, first, second, "code, names, log and diagnostics")
	require.Len(t, second.Diagnostics, 1)

	for what, change := range map[string]func(in *input){
		"name":     func(in *input) { in.name = "other.cu" },
		"source":   func(in *input) { in.source += "\n" },
		"arch":     func(in *input) { in.o.Arch = "sm_80" },
		"format":   func(in *input) { in.o.Arch, in.o.Format = "sm_90", Cubin },
		"names":    func(in *input) { in.o.Names = []string{"k<2>"} },
		"header":   func(in *input) { in.o.Headers["h.h"] = "#define N 8\n" },
		"headers":  func(in *input) { in.o.Headers["other.h"] = "" },
		"define":   func(in *input) { in.o.Defines = map[string]string{"X": "1"} },
		"extra":    func(in *input) { in.o.Extra = []string{"-w"} },
		"standard": func(in *input) { in.o.Standard = CPP14 },
	} {
		in := base()
		change(&in)
		require.False(t, compile(in).Cached, what)
		require.True(t, compile(in).Cached, what)
	}

	files := base()
	files.o.Headers, files.o.IncludeDirs = nil, []string{dir}
	require.False(t, compile(files).Cached)
	require.True(t, compile(files).Cached)
	require.NoError(t, os.WriteFile(header, []byte("#define N 22\n"), 0o600))
	require.False(t, compile(files).Cached, "a header was changed")
	files.o.Extra = []string{"-I" + dir}
	require.False(t, compile(files).Cached)
	require.False(t, compile(files).Cached, "the key does not cover the files of the option")

	in := base()
	in.source = "oops"
	for range 2 {
		_, err = Compile(t.Context(), in.name, in.source, in.o)
		require.Error(t, err, "errors are not stored")
	}
}

// Compilations run concurrently, and every program is destroyed, also after an error. The package's other tests run at the
// same time, so this test counts until their programs are gone.
func TestConcurrentCompilesLeakNothing(t *testing.T) {
	need(t)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := range 3 {
				name := fmt.Sprintf("kernel%d_%d", i, j)
				b, err := Compile(t.Context(), name+".cu", "extern \"C\" __global__ void "+name+"() {}", Options{})
				if err != nil || !strings.Contains(string(b.Code), ".entry "+name+"(") {
					t.Error(name, err)
				}
				if _, err := Compile(t.Context(), "x.cu", name, Options{}); err == nil {
					t.Error("no error")
				}
			}
		}()
	}
	wg.Wait()
	require.Zero(t, live.Load())
	running := 0
	compilations.Range(func(any, any) bool { running++; return true })
	require.Zero(t, running)
}

// The end of a context cancels a compilation that takes long.
func TestCancel(t *testing.T) {
	need(t)
	if Available("SetFlowCallback") != nil {
		require.Less(t, libraryVersion(t), 12080)
		t.Skip("libraries before CUDA 12.8 cannot cancel")
	}
	var source strings.Builder
	for i := range 600 {
		fmt.Fprintf(&source, "template<int N> __global__ void k%d(float *x) { for (int i = 0; i < N; i++) x[i] = sinf(x[i + 1]) * cosf(x[i]) + N; }\ntemplate __global__ void k%d<%d>(float *);\n", i, i, i+1)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := Compile(ctx, "long.cu", source.String(), Options{Arch: "sm_90", Format: Cubin})
		ended <- err
	}()
	for live.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Zero(t, live.Load())
	_, err := Compile(ctx, "k.cu", scale, Options{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestVersionAndArchitectures(t *testing.T) {
	need(t)
	t.Parallel()
	major, _, err := Version()
	require.NoError(t, err)
	require.GreaterOrEqual(t, major, 11)
	list, err := Architectures()
	require.NoError(t, err)
	require.Contains(t, list, "sm_90")
	require.Equal(t, "NVRTC_ERROR_COMPILATION", GetErrorString(ERROR_COMPILATION))
	require.True(t, filepath.IsAbs(File()), File())
	require.NotEmpty(t, Path())
}

// The headers that the library contains are usable in a compilation.
func TestInstallHeaders(t *testing.T) {
	need(t)
	var info BundledHeadersInfo
	var log *byte
	if r := GetBundledHeadersInfo(&info, &log); r != SUCCESS || info.Available == 0 {
		t.Skip("the library contains no headers: ", r.Err())
	}
	require.EqualValues(t, HeaderVersion/1000, info.CudaVersionMajor)
	require.Positive(t, info.NumFiles)
	dir := t.TempDir()
	require.NoError(t, InstallHeaders(dir))
	b, err := Compile(t.Context(), "half.cu", "#include <cuda_fp16.h>\nextern \"C\" __global__ void k(__half *x) { *x = __hadd(*x, *x); }", Options{Arch: "compute_90", IncludeDirs: []string{dir}})
	require.NoError(t, err)
	require.Contains(t, string(b.Code), ".f16")
}

// The library has every function of the header.
func TestEverySymbol(t *testing.T) {
	need(t)
	major, minor, err := Version()
	require.NoError(t, err)
	for _, f := range Functions() {
		if err := Available(f.Name); err != nil {
			require.NotEqual(t, HeaderVersion, major*1000+minor*10, err)
			require.ErrorIs(t, err, errors.ErrUnsupported)
			t.Log(err)
		}
	}
}

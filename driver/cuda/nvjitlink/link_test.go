package nvjitlink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/jitcache"
	"github.com/sharedtensor/sharedtensor/driver/cuda/nvrtc"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// need skips the test without the libraries, or fails it if SHAREDTENSOR_REQUIRE promises them.
func need(t testing.TB) {
	t.Helper()
	err := Load("")
	drivertest.Needs(t, "nvjitlink", err == nil, fmt.Sprint(err))
	err = nvrtc.Load("")
	drivertest.Needs(t, "nvrtc", err == nil, fmt.Sprint(err))
}

const (
	kernel  = "extern __device__ float twice(float);\nextern \"C\" __global__ void k(float *x) { x[threadIdx.x] = twice(x[threadIdx.x]); }\n"
	library = "__device__ float twice(float v) { return 2 * v; }\nextern \"C\" __global__ void unused(float *x) { *x = twice(1); }\n"
)

func compile(t *testing.T, name, source string, format nvrtc.Format) []byte {
	t.Helper()
	b, err := nvrtc.Compile(t.Context(), name, source, nvrtc.Options{Arch: "sm_90", Format: format, Relocatable: true})
	require.NoError(t, err)
	return b.Code
}

// PTX, LTO-IR and cubins are linked to a cubin that contains the kernel, also in a mixture.
func TestLink(t *testing.T) {
	need(t)
	t.Parallel()
	ptx := [2][]byte{compile(t, "k.cu", kernel, nvrtc.PTX), compile(t, "l.cu", library, nvrtc.PTX)}
	lto := [2][]byte{compile(t, "k.cu", kernel, nvrtc.LTOIR), compile(t, "l.cu", library, nvrtc.LTOIR)}
	cubin := [2][]byte{compile(t, "k.cu", kernel, nvrtc.Cubin), compile(t, "l.cu", library, nvrtc.Cubin)}
	for name, inputs := range map[string][]Input{
		"PTX":           {PTX("k", ptx[0]), PTX("l", ptx[1])},
		"LTO-IR":        {LTOIR("k", lto[0]), LTOIR("l", lto[1])},
		"cubin":         {Cubin("k", cubin[0]), Cubin("l", cubin[1])},
		"PTX and cubin": {PTX("k", ptx[0]), Cubin("l", cubin[1])},
		"LTO and PTX":   {LTOIR("k", lto[0]), PTX("l", ptx[1])},
		"any cubin":     {{"k", INPUT_ANY, cubin[0]}, {"l", INPUT_ANY, cubin[1]}},
		"any PTX":       {{"k", INPUT_ANY, append(bytes.Clone(ptx[0]), " bogus"...)[:len(ptx[0])]}, {"l", INPUT_ANY, append(bytes.Clone(ptx[1]), 0)}},
		"any LTO-IR":    {{"k", INPUT_ANY, lto[0]}, {"l", INPUT_ANY, lto[1]}},
		"any of each":   {{"k", INPUT_ANY, lto[0]}, {"l", INPUT_ANY, ptx[1]}},
	} {
		l, err := Link(t.Context(), inputs, Options{Arch: "sm_90"})
		require.NoError(t, err, name)
		require.Equal(t, "\x7fELF", string(l.Code[:4]), name)
		require.True(t, bytes.Contains(l.Code, []byte(".text.k\x00")), name)
	}

	// LTO-IR that is not recognised, as in a fatbin, is linked when the library reports it.
	if major, _, err := Version(); err == nil && major >= 13 {
		l, err := linkAny([]Input{{"k", INPUT_ANY, lto[0]}, {"l", INPUT_ANY, lto[1]}}, []string{"-arch=sm_90"}, ToCubin)
		require.NoError(t, err)
		require.True(t, bytes.Contains(l.Code, []byte(".text.k\x00")))
	}

	l, err := Link(t.Context(), []Input{LTOIR("k", lto[0]), {"l", INPUT_ANY, lto[1]}}, Options{Arch: "sm_90", Format: ToPTX, KernelsUsed: []string{"k"}})
	require.NoError(t, err)
	require.Contains(t, string(l.Code), ".entry k(")
	require.NotContains(t, string(l.Code), ".entry unused(", "it is not among KernelsUsed")
	require.NotContains(t, string(l.Code), "call", "the function of the other input is inlined")
	require.NotContains(t, string(l.Code), "\x00")
}

// The option for LTO-IR is passed if an input is LTO-IR, and text of any type ends with a zero byte.
func TestInputsOfAnyType(t *testing.T) {
	lto, elf := []byte("\xed\x43\x4e\x7f\x01\x00"), []byte("\x7fELF\x02\x00.version")
	for name, c := range map[string]struct {
		in       Input
		lto, ptx bool
	}{
		"LTO-IR":             {LTOIR("", lto), true, false},
		"any LTO-IR":         {Input{"", INPUT_ANY, lto}, true, false},
		"PTX":                {PTX("", []byte("x")), false, true},
		"any PTX":            {Input{"", INPUT_ANY, []byte("// text\n.version 8.0\n")}, false, true},
		"any PTX with a NUL": {Input{"", INPUT_ANY, []byte(".version 8.0\n\x00")}, false, true},
		"any cubin":          {Input{"", INPUT_ANY, elf}, false, false},
		"cubin":              {Cubin("", elf), false, false},
		"object":             {Object("", lto), false, false},
	} {
		require.Equal(t, c.lto, c.in.isLTO(), name)
		require.Equal(t, c.ptx, c.in.isPTX(), name)
		o := Options{Arch: "sm_90"}
		require.Equal(t, c.lto, slices.Contains(o.flags([]Input{Cubin("", elf), c.in}), ltoFlag), name)
	}
}

// A refused input is named, and both logs are returned.
func TestLinkErrors(t *testing.T) {
	need(t)
	t.Parallel()
	k := compile(t, "k.cu", kernel, nvrtc.PTX)
	_, err := Link(t.Context(), []Input{PTX("kernel", k)}, Options{Arch: "sm_90"})
	var failed *LinkError
	require.ErrorAs(t, err, &failed)
	require.Contains(t, failed.ErrorLog, "twice", "the undefined function")
	require.ErrorContains(t, err, "twice")
	require.ErrorIs(t, err, Error{Result: failed.Result})

	_, err = Link(t.Context(), []Input{PTX("broken.ptx", []byte(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { bogus; }\n"))}, Options{Arch: "sm_90"})
	require.ErrorAs(t, err, &failed)
	require.Equal(t, ERROR_PTX_COMPILE, failed.Result)
	require.ErrorContains(t, err, "broken.ptx")
	_, err = Link(t.Context(), []Input{Cubin("broken.cubin", []byte("not a cubin"))}, Options{Arch: "sm_90"})
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "broken.cubin", failed.Input)

	_, err = Link(t.Context(), []Input{PTX("k", k)}, Options{Arch: "sm_90", Extra: []string{"-no-such-option"}})
	require.ErrorAs(t, err, &failed)
	require.Equal(t, ERROR_UNRECOGNIZED_OPTION, failed.Result)
	major, _, err := Version()
	require.NoError(t, err)
	if major >= 13 { // version 12.9 crashes if LTO-IR was linked before
		_, err = Link(t.Context(), []Input{PTX("k", k)}, Options{Arch: "sm_999"})
		require.ErrorAs(t, err, &failed)
	}
}

// Every option is accepted by the library, and information is returned in the log.
func TestLinkOptions(t *testing.T) {
	need(t)
	t.Parallel()
	inputs := []Input{LTOIR("k", compile(t, "k.cu", kernel, nvrtc.LTOIR)), LTOIR("l", compile(t, "l.cu", library, nvrtc.LTOIR))}
	for _, o := range []Options{{Debug: true}, {LineInfo: true}, {FastMath: true, MaxRegisters: 32}, {SplitCompile: 2}, {VariablesUsed: []string{"v"}}} {
		o.Arch = "sm_90"
		_, err := Link(t.Context(), inputs, o)
		require.NoError(t, err, "%+v", o)
	}
	l, err := Link(t.Context(), inputs, Options{Arch: "sm_90", Verbose: true})
	require.NoError(t, err)
	require.Contains(t, l.InfoLog, "registers")
}

// Options and inputs that the library must not see are refused without it.
func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	in := []Input{PTX("k", []byte("x"))}
	for want, c := range map[string]struct {
		inputs []Input
		o      Options
	}{
		"architecture": {in, Options{}},
		"compute_90":   {in, Options{Arch: "compute_90"}},
		"no inputs":    {nil, Options{Arch: "sm_90"}},
		"is empty":     {[]Input{PTX("k", nil)}, Options{Arch: "sm_90"}},
		"NUL":          {[]Input{PTX("k\x00", []byte("x"))}, Options{Arch: "sm_90"}},
		"not LTO-IR":   {in, Options{Arch: "sm_90", Format: ToPTX}},
		"no format":    {in, Options{Arch: "sm_90", Format: 7}},
		"negative":     {in, Options{Arch: "sm_90", SplitCompile: -1}},
		"a symbol":     {in, Options{Arch: "sm_90", KernelsUsed: []string{"a,b"}}},
		"option":       {in, Options{Arch: "sm_90", Extra: []string{""}}},
	} {
		_, err := Link(t.Context(), c.inputs, c.o)
		require.ErrorIs(t, err, ErrOptions, want)
		require.ErrorContains(t, err, want)
	}
}

func TestLinkCache(t *testing.T) {
	need(t)
	t.Parallel()
	cache, err := jitcache.Open(jitcache.Options{Dir: filepath.Join(t.TempDir(), "jit")})
	require.NoError(t, err)
	inputs := []Input{PTX("k", compile(t, "k.cu", kernel, nvrtc.PTX)), PTX("l", compile(t, "l.cu", library, nvrtc.PTX))}
	o := Options{Arch: "sm_90", Cache: cache, Verbose: true}
	first, err := Link(t.Context(), inputs, o)
	require.NoError(t, err)
	require.False(t, first.Cached)
	second, err := Link(t.Context(), inputs, o)
	require.NoError(t, err)
	require.True(t, second.Cached)
	second.Cached = false
	require.Equal(t, first, second)
	o.LineInfo = true
	third, err := Link(t.Context(), inputs, o)
	require.NoError(t, err)
	require.False(t, third.Cached)
	inputs[0].Name = "other"
	third, err = Link(t.Context(), inputs, o)
	require.NoError(t, err)
	require.False(t, third.Cached)
}

// Links run concurrently, and every handle is destroyed, also after an error.
func TestConcurrentLinksLeakNothing(t *testing.T) {
	need(t)
	inputs := []Input{PTX("k", compile(t, "k.cu", kernel, nvrtc.PTX)), PTX("l", compile(t, "l.cu", library, nvrtc.PTX))}
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 3 {
				if _, err := Link(t.Context(), inputs, Options{Arch: "sm_90"}); err != nil {
					t.Error(err)
				}
				if _, err := Link(t.Context(), inputs[:1], Options{Arch: "sm_90"}); err == nil {
					t.Error("no error")
				}
			}
		}()
	}
	wg.Wait()
	require.Zero(t, live.Load())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Link(ctx, inputs, Options{Arch: "sm_90"})
	require.ErrorIs(t, err, context.Canceled)
}

// The library has every function of the header.
func TestEverySymbol(t *testing.T) {
	need(t)
	major, minor, err := Version()
	require.NoError(t, err)
	require.True(t, filepath.IsAbs(File()), File())
	for _, f := range Functions() {
		if err := Available(f.Name); err != nil {
			require.NotEqual(t, HeaderVersion, major*1000+minor*10, err)
			require.ErrorIs(t, err, errors.ErrUnsupported)
			t.Log(err)
		}
	}
}

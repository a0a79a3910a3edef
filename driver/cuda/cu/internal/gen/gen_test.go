package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The committed files of each package equal the generator's output.
func TestUpToDate(t *testing.T) {
	for _, target := range targets {
		t.Run(target.name, func(t *testing.T) {
			header := os.Getenv(target.env)
			if header == "" {
				t.Skipf("no %s in %s: not generated again", target.header, target.env)
			}
			docs, err := readDocs(target.docs())
			require.NoError(t, err)
			m, err := readModel(target, header)
			require.NoError(t, err)
			require.NoError(t, m.addDocs(docs, false))
			files, err := m.generate()
			require.NoError(t, err)
			for name, want := range files {
				got, err := os.ReadFile(filepath.Join(target.dir(), name))
				require.NoError(t, err)
				require.Equal(t, string(want), string(got), "%s: run the generator", name)
			}
			old, err := filepath.Glob(filepath.Join(target.dir(), "z_*.go"))
			require.NoError(t, err)
			for _, path := range old {
				require.Contains(t, files, filepath.Base(path), "not generated any more")
			}
		})
	}
}

// Names of the other libraries lack their prefixes and suffixes, and version macros do not collide with records.
func TestLibraryNames(t *testing.T) {
	require.Equal(t, "CreateProgram", nvrtcTarget.goName("nvrtcCreateProgram"))
	require.Equal(t, "ERROR_BUSY", nvrtcTarget.constantName("NVRTC_ERROR_BUSY"))
	require.Equal(t, "Handle", nvjitlinkTarget.typeName("nvJitLinkHandle"))
	require.Equal(t, "Device", nvmlTarget.typeName("nvmlDevice_t"))
	require.Equal(t, "Memory_v2", nvmlTarget.typeName("nvmlMemory_v2_t"))
	require.Equal(t, "Memory_v2_VERSION", nvmlTarget.constantName("nvmlMemory_v2"))
	_, err := findTarget("other")
	require.Error(t, err)
}

// Functions that package dl cannot call are refused.
func TestLibraryCalls(t *testing.T) {
	parsed, err := parse(`typedef enum { NVRTC_SUCCESS } nvrtcResult; typedef struct { long a, b; } nvrtcPair;
		nvrtcResult nvrtcA(int *x); const char *nvrtcB(nvrtcResult r); nvrtcResult nvrtcC(nvrtcPair p);
		nvrtcResult nvrtcD(float x); double nvrtcE(void);`)
	require.NoError(t, err)
	m := &model{target: nvrtcTarget, header: parsed}
	m.public(nil)
	m.names, err = newNames(m)
	require.NoError(t, err)
	calls, err := m.calls()
	require.NoError(t, err)
	require.Len(t, calls, 5)
	for i, c := range calls {
		if i < 2 {
			require.NoError(t, m.checkCall(c))
		} else {
			require.Error(t, m.checkCall(c), c.name)
		}
	}
}

func TestNames(t *testing.T) {
	for c, want := range map[string]string{
		"cuMemAlloc":                    "MemAlloc",
		"cuIpcOpenMemHandle_v1":         "IpcOpenMemHandle_v1",
		"CUmemLocation":                 "MemLocation",
		"CU_EVENT_DEFAULT":              "EVENT_DEFAULT",
		"CUDA_ERROR_OUT_OF_MEMORY":      "ERROR_OUT_OF_MEMORY",
		"CUDA_MEMCPY2D":                 "MEMCPY2D",
		"CUdeviceptr":                   "DevicePtr",
		"CUuuid":                        "UUID",
		"cl_event_flags":                "Cl_event_flags",
		"NVCL_EVENT_SCHED_AUTO":         "NVCL_EVENT_SCHED_AUTO",
		"CUGPUDirectRDMAWritesOrdering": "GPUDirectRDMAWritesOrdering",
	} {
		require.Equal(t, want, cuTarget.goName(c), c)
	}
	for c, want := range map[string]string{
		"Flags": "flags", "WidthInBytes": "widthInBytes", "N": "n", "type": "type_", "error": "result", "pStr": "pStr", "": "arg3",
	} {
		require.Equal(t, want, paramName(c, 3), c)
	}
}

// The words of a call follow both conventions: System V AMD64 ABI 3.2.3, AAPCS64 6.8.2.
func TestWords(t *testing.T) {
	i := func(name string) param { return param{name: name} }
	p := func(name string) param { return param{name: name, class: pointer} }
	s := func(name string, words int) param { return param{name: name, class: record, words: words} }
	ints := func(n int) []param {
		var out []param
		for k := range n {
			out = append(out, i(string(rune('a'+k))))
		}
		return out
	}
	words := func(names string) []string {
		var out []string
		for _, r := range names {
			out = append(out, "uintptr("+string(r)+")")
		}
		return out
	}
	tests := map[string]struct {
		params       []param
		amd64, arm64 []string
	}{
		"registers":   {ints(3), words("abc"), words("abc")},
		"stack":       {ints(10), words("abcdefghij"), words("abcdefghij")},
		"pointer":     {[]param{p("x")}, []string{"uintptr(unsafe.Pointer(x))"}, []string{"uintptr(unsafe.Pointer(x))"}},
		"one word":    {[]param{i("a"), s("x", 1)}, []string{"uintptr(a)", "xWords[0]"}, []string{"uintptr(a)", "xWords[0]"}},
		"large first": {[]param{s("x", 3), i("a")}, []string{"uintptr(a)", "0", "0", "0", "0", "0", "xWords[0]", "xWords[1]", "xWords[2]"}, []string{"uintptr(unsafe.Pointer(&x))", "uintptr(a)"}},
		"two words do not fit": {
			append(ints(5), s("x", 2), i("z")),
			append(words("abcdez"), "xWords[0]", "xWords[1]"),
			append(append(words("abcde"), "xWords[0]", "xWords[1]"), "uintptr(z)"),
		},
		"AAPCS64 uses no register after the stack": {
			append(ints(7), s("x", 2), i("z")),
			append(append(words("abcdefg"), "xWords[0]", "xWords[1]"), "uintptr(z)"),
			append(append(words("abcdefg"), "0", "xWords[0]", "xWords[1]"), "uintptr(z)"),
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, got := amd64.words(test.params)
			require.Equal(t, test.amd64, got)
			_, got = arm64.words(test.params)
			require.Equal(t, test.arm64, got)
		})
	}
}

func TestRecordsThatCannotBePassed(t *testing.T) {
	h, err := parse(`
		typedef struct { float f[2]; } floats;
		typedef struct { int i[3]; } size;
		typedef struct { _Alignas(16) int i[8]; } align;
		typedef struct { char c[64]; } bytes;`)
	require.NoError(t, err)
	p := param{}
	for _, d := range h.typedefs {
		if d.name == "bytes" {
			require.NoError(t, classify(d.typ, &p))
		} else if isRecord(d.typ) {
			require.ErrorContains(t, classify(d.typ, &param{}), "by value is not supported", d.name)
		}
	}
	require.Equal(t, 8, p.words)
}

func TestDocFile(t *testing.T) {
	docs := map[string]*docText{}
	require.NoError(t, readDocFile(docs, "memory.txt", "# note\ncuA: does a\n\tthing.\n\n\tMore.\ncuB: b.\n"))
	require.Equal(t, "does a\nthing.\n\nMore.", docs["cuA"].text)
	require.Equal(t, "memory", docs["cuB"].group)
	for name, text := range map[string]string{
		"twice": "cuA: again", "no colon": "cuC does", "text first": "\tx", "two words": "cu C: x",
	} {
		if name == "text first" {
			require.Error(t, readDocFile(map[string]*docText{}, "x.txt", text), name)
			continue
		}
		require.Error(t, readDocFile(docs, "x.txt", text), name)
	}
}

func TestSince(t *testing.T) {
	table := sinceTable{"cuMemAlloc": {2000, 3020}}
	require.Equal(t, 3020, table.of("cuMemAlloc_v2"))
	require.Equal(t, 2000, table.of("cuMemAlloc"))
	require.Zero(t, table.of("cuMemAlloc_v3"))
	require.Zero(t, table.of("cuNone"))
}

// Typedefs, functions and macros are read after expansion, in order, and symbols are followed through macros.
func TestHeader(t *testing.T) {
	h, err := parse(`#include <stdint.h>
		#define PASTE(x) x ## _v2
		#define cuF PASTE(cuF)
		#ifdef OTHER
		#define CU_FLAG ((CUflag)0x10)
		#endif
		typedef uint32_t CUflag_v1; typedef CUflag_v1 CUflag; typedef struct CUs_st *CUs;
		typedef enum { A = 1 << 3, B } CUe;
		int cuF(CUflag f, const CUs list[]); __attribute__((deprecated)) void cuG(void);
		static inline int helper(int x) { return x; }
		typedef struct { char a; union { int b; double c; }; } CUr;`, "OTHER")
	require.NoError(t, err)
	aliases := map[string]string{}
	for _, d := range h.typedefs {
		aliases[d.name] = d.alias
		if d.name == "CUr" {
			require.Equal(t, int64(16), d.typ.Size())
			require.Len(t, fields(d.typ), 2)
			require.NotEqual(t, recordID(d.typ), recordID(fields(d.typ)[1].Type()))
		}
	}
	require.Equal(t, "CUflag_v1", aliases["CUflag"])
	require.Empty(t, aliases["CUs"])
	require.Len(t, h.functions, 2)
	require.Equal(t, "cuF_v2", h.functions[0].name)
	require.Equal(t, "CUflag", typedefName(h.functions[0].params[0].Type()))
	require.True(t, h.functions[1].deprecated)
	require.Empty(t, h.functions[1].params)
	require.Equal(t, "cuF_v2", h.expanded["cuF"])
	require.Equal(t, "((CUflag)0x10)", h.expanded["CU_FLAG"])
	_, err = parse("typedef foo bar;")
	require.Error(t, err)
}

// Only pointers that are plainly outputs become results.
func TestOutputs(t *testing.T) {
	parsed, err := parse(`typedef unsigned long long CUdeviceptr; typedef struct CUs_st *CUstream; typedef int CUresult; typedef struct { int a; } CUprops;
		#define CUDA_VERSION 13000
		CUresult cuMemMake(CUdeviceptr *dptr, unsigned long long *pPitch, int n); CUresult cuStreamGetId(CUstream s, int *id);
		CUresult cuListGet(CUstream s, CUdeviceptr *items, unsigned *numItems); CUresult cuPropsSet(int n, CUprops *props);
		CUresult cuMakeFrom(CUstream *out, const CUprops *props, char *text); CUresult cuBuffer(char *text, int n); CUresult cuNothing(int n);`)
	require.NoError(t, err)
	m := &model{target: cuTarget, header: parsed}
	m.public(nil)
	m.names, err = newNames(m)
	require.NoError(t, err)
	calls, err := m.calls()
	require.NoError(t, err)
	outputs := map[string][]string{}
	for _, c := range calls {
		m.setOutputs(c)
		for _, p := range c.params {
			if p.output {
				outputs[c.name] = append(outputs[c.name], c.outputName(p))
			}
		}
	}
	require.Equal(t, map[string][]string{"cuMemMake": {"dptr", "pitch"}, "cuStreamGetId": {"id"}}, outputs)
}

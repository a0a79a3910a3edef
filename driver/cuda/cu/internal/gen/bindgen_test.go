package main

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"modernc.org/cc/v4"
)

// bindings are declarations of cuda.h that bindgen has translated to Rust. There is no package with the header of CUDA 10, but
// one with its translation: the crate cuda-driver-sys.
type bindings struct {
	version   int
	functions map[string][]string // types of the parameters
	aliases   map[string]string
	enums     map[string]bool
	sizes     map[string]int64            // of records
	offsets   map[string]map[string]int64 // of their fields
	values    map[string]int64
}

var (
	rustFunction = regexp.MustCompile(`pub fn (cu\w+)\(([^)]*(?:\([^)]*\)[^)]*)*)\) -> CUresult;`)
	rustParam    = regexp.MustCompile(`(\w+): ([^,]+(?:<[^>]*>)?),?`)
	rustAlias    = regexp.MustCompile(`pub type (\w+) =\s*([^;]+);`)
	rustUse      = regexp.MustCompile(`pub use self::(\w+) as (\w+);`)
	rustEnum     = regexp.MustCompile(`pub enum (\w+) \{`)
	rustValue    = regexp.MustCompile(`(?m)^    (CU\w+) = (-?\d+),`)
	rustConst    = regexp.MustCompile(`pub const (CU\w+): \w+ = (-?\d+);`)
	rustLayout   = regexp.MustCompile(`(?s)size_of::<(\w+),?>\(\),\s*(\d+)usize`)
	rustOffset   = regexp.MustCompile(`(?s)null::<\s*(\w+),?\s*>\(\)\)\)\s*\.(\w+) as \*const _ as usize\s*\},\s*(\d+)usize`)
)

func readBindings(t *testing.T, path string) *bindings {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	text := string(data)
	b := &bindings{functions: map[string][]string{}, aliases: map[string]string{}, enums: map[string]bool{}, sizes: map[string]int64{},
		offsets: map[string]map[string]int64{}, values: map[string]int64{}}
	for _, m := range rustFunction.FindAllStringSubmatch(text, -1) {
		b.functions[m[1]] = []string{}
		for _, p := range rustParam.FindAllStringSubmatch(m[2], -1) {
			b.functions[m[1]] = append(b.functions[m[1]], strings.TrimSpace(p[2]))
		}
	}
	for _, m := range rustAlias.FindAllStringSubmatch(text, -1) {
		b.aliases[m[1]] = m[2]
	}
	for _, m := range rustUse.FindAllStringSubmatch(text, -1) {
		b.aliases[m[2]] = m[1]
	}
	for _, m := range rustEnum.FindAllStringSubmatch(text, -1) {
		b.enums[m[1]] = true
	}
	for _, m := range append(rustValue.FindAllStringSubmatch(text, -1), rustConst.FindAllStringSubmatch(text, -1)...) {
		b.values[m[1]], _ = strconv.ParseInt(m[2], 10, 64) // the pattern matches digits
	}
	for _, m := range rustLayout.FindAllStringSubmatch(text, -1) {
		b.sizes[m[1]], _ = strconv.ParseInt(m[2], 10, 64)
	}
	for _, m := range rustOffset.FindAllStringSubmatch(text, -1) {
		if b.offsets[m[1]] == nil {
			b.offsets[m[1]] = map[string]int64{}
		}
		b.offsets[m[1]][m[2]], _ = strconv.ParseInt(m[3], 10, 64)
	}
	b.version = int(b.values["CUDA_VERSION"])
	return b
}

// size returns the size of a Rust type in bytes. 0 means unknown.
func (b *bindings) size(rust string) int64 {
	rust = strings.TrimPrefix(rust, "::std::os::raw::")
	switch {
	case strings.HasPrefix(rust, "*"), strings.HasPrefix(rust, "::std::option::Option"), rust == "usize", rust == "u64", rust == "c_ulonglong", rust == "c_ulong":
		return 8
	case rust == "u32", rust == "c_uint", rust == "c_int", rust == "f32", b.enums[rust]:
		return 4
	case rust == "c_ushort":
		return 2
	case rust == "c_uchar", rust == "c_char":
		return 1
	case b.sizes[rust] > 0:
		return b.sizes[rust]
	case b.aliases[rust] != "":
		return b.size(b.aliases[rust])
	}
	return 0
}

// Functions, records and values of CUDA 10 agree with the current header.
func TestBindingsOfCUDA10(t *testing.T) {
	path := os.Getenv("CUDA_RS")
	if path == "" {
		t.Skip("no translation of an older cuda.h in CUDA_RS: it is not compared")
	}
	b := readBindings(t, path)
	m := modelOf(t, os.Getenv("CUDA_H"))
	require.GreaterOrEqual(t, len(b.functions), 270, "functions of CUDA %s", versionText(b.version))
	bound := map[string]*function{}
	for _, f := range m.functions {
		bound[f.symbol] = f
	}
	for symbol, types := range b.functions {
		f := bound[symbol]
		if strings.HasPrefix(symbol, "cuProfiler") { // of cudaProfiler.h
			continue
		}
		if f == nil {
			t.Errorf("%s is not bound", symbol)
			continue
		}
		require.LessOrEqual(t, f.since, b.version, "the version of %s", symbol)
		require.Len(t, types, len(f.decl.params), symbol)
		for i, p := range f.decl.params {
			require.NotZero(t, b.size(types[i]), "%s: parameter %s", symbol, types[i])
			require.Equal(t, b.size(types[i]), p.Type().Decay().Size(), "%s: parameter %s", symbol, p.Name())
		}
	}
	compareRecords(t, b, m)
	values := enumerators(m)
	for name, want := range b.values {
		if got, ok := values[name]; ok && got != want && !limits.MatchString(name) && !slices.Contains(renumbered, name) {
			t.Errorf("%s is %d, and was %d", name, got, want)
		}
	}
	t.Logf("CUDA %s: %d functions, %d records, %d values", versionText(b.version), len(b.functions), len(b.sizes), len(b.values))
}

// compareRecords compares sizes and offsets of records. Fields that are now inside an anonymous record are left out.
func compareRecords(t *testing.T, b *bindings, m *model) {
	compared := 0
	for _, d := range m.header.typedefs {
		rust := b.aliases[d.name]
		if b.sizes[rust] == 0 || !isRecord(d.typ) {
			continue
		}
		compared++
		require.LessOrEqual(t, b.sizes[rust], d.typ.Size(), d.name)
		for _, f := range fields(d.typ) {
			if want, ok := b.offsets[rust][f.Name()]; ok && d.typ.Kind() == cc.Struct {
				require.Equal(t, want, f.Offset(), "%s.%s", d.name, f.Name())
			}
		}
	}
	require.Greater(t, compared, 20, "records of the current header that are in the bindings")
}

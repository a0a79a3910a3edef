//go:build amd64 || arm64

package cu

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// layout is the size, the alignment and the field offsets of a record, in bytes.
type layout struct {
	Size   uintptr            `json:"size"`
	Align  uintptr            `json:"align"`
	Fields map[string]uintptr `json:"fields"`
}

// layouts holds the layouts of records and the sizes of all other types, by their C names.
type layouts struct {
	Version Version            `json:"version"`
	Records map[string]layout  `json:"records"`
	Sizes   map[string]uintptr `json:"sizes"`
}

// layoutFile holds the C compiler's results, which are the same for amd64 and arm64.
const layoutFile = "testdata/layout_lp64.json"

var update = flag.Bool("update", false, "write testdata/layout_lp64.json from what cc says of the header in CUDA_H")

// The size, alignment and field offsets of every record, and the size of every other type, equal the C compiler's
// results for cuda.h and the numbers in testdata. Without a header or a compiler, only the numbers are compared.
func TestLayout(t *testing.T) {
	committed := layouts{}
	text, err := os.ReadFile(layoutFile)
	if err == nil {
		require.NoError(t, json.Unmarshal(text, &committed))
	}
	if header := headerOrLog(t); header != "" {
		ofC := askCompiler(t, header)
		if *update {
			text, err := json.MarshalIndent(ofC, "", "\t")
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(layoutFile, append(text, '\n'), 0o644))
			committed = ofC
		}
		require.Equal(t, HeaderVersion, ofC.Version, "CUDA_H is another version than the package was generated from")
		require.Equal(t, ofC, committed, "run go test -update")
	}
	require.Equal(t, HeaderVersion, committed.Version)
	require.Equal(t, slices.Sorted(maps.Keys(committed.Records)), slices.Sorted(maps.Keys(goLayouts)))
	fields := 0
	for c, want := range committed.Records {
		got := goLayouts[c]
		if c == "CUtensorMap" {
			// Go has no type that is aligned to 128 bytes. NewTensorMap aligns it instead.
			got.Align = want.Align
		}
		require.Equal(t, want, got, c)
		fields += len(want.Fields)
	}
	sizes := maps.Clone(goSizes)
	for _, c := range []string{"CUdriverProcAddress_flags", "CUgraphInstantiate_flags", "CUmemRangeFlags"} {
		// The parameters with these flags have 64 bits in C. No record contains them, and the recorded calls compare their bytes.
		require.EqualValues(t, 8, sizes[c], c)
		sizes[c] = committed.Sizes[c]
	}
	require.Equal(t, committed.Sizes, sizes)
	t.Logf("%d records with %d fields, %d other types", len(goLayouts), fields, len(goSizes))
}

// headerOrLog returns the cuda.h in CUDA_H. Otherwise it logs that it is not set and returns an empty string.
func headerOrLog(t *testing.T) string {
	header := os.Getenv("CUDA_H")
	if header == "" {
		t.Log("no cuda.h in CUDA_H: comparing with committed numbers only")
	}
	return header
}

// askCompiler compiles and runs a program that prints the layout of everything in goLayouts and goSizes.
func askCompiler(t *testing.T, header string) layouts {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("CUDA_H is set, but there is no C compiler")
	}
	var b strings.Builder
	b.WriteString("#include <cuda.h>\n#include <stdio.h>\n#include <stddef.h>\nint main(void) {\n")
	b.WriteString("printf(\"version . %d\\n\", CUDA_VERSION);\n")
	for c, l := range goLayouts {
		fmt.Fprintf(&b, "printf(\"%s size %%zu\\n%s align %%zu\\n\", sizeof(%s), _Alignof(%s));\n", c, c, c, c)
		for f := range l.Fields {
			fmt.Fprintf(&b, "printf(\"%s .%s %%zu\\n\", offsetof(%s, %s));\n", c, f, c, f)
		}
	}
	for c := range goSizes {
		fmt.Fprintf(&b, "printf(\"%s only %%zu\\n\", sizeof(%s));\n", c, c)
	}
	b.WriteString("return 0; }\n")
	dir := t.TempDir()
	source, program := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	require.NoError(t, os.WriteFile(source, []byte(b.String()), 0o600))
	out, err := exec.Command(cc, "-std=c11", "-I", filepath.Dir(header), "-o", program, source).CombinedOutput()
	require.NoError(t, err, string(out))
	out, err = exec.Command(program).Output()
	require.NoError(t, err)

	l := layouts{Records: map[string]layout{}, Sizes: map[string]uintptr{}}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		words := strings.Fields(line)
		n, err := strconv.ParseUint(words[2], 10, 32)
		require.NoError(t, err)
		c, value := words[0], uintptr(n)
		r := l.Records[c]
		if r.Fields == nil {
			r.Fields = map[string]uintptr{}
		}
		switch {
		case c == "version":
			l.Version = Version(value)
			continue
		case words[1] == "only":
			l.Sizes[c] = value
			continue
		case words[1] == "size":
			r.Size = value
		case words[1] == "align":
			r.Align = value
		default:
			r.Fields[words[1][1:]] = value
		}
		l.Records[c] = r
	}
	return l
}

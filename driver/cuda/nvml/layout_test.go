//go:build amd64 || arm64

package nvml

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The size, alignment and field offsets of every record, and the size of every other type, equal the C compiler's results for
// the header in NVML_H.
func TestLayout(t *testing.T) {
	header := os.Getenv("NVML_H")
	if header == "" {
		t.Skip("no nvml.h in NVML_H: layouts are not compared")
	}
	cc, err := exec.LookPath("cc")
	require.NoError(t, err)
	var b bytes.Buffer
	b.WriteString("#include <nvml.h>\n#include <stddef.h>\n#define EQUAL(a, b) _Static_assert((a) == (b), #a)\n")
	fields := 0
	for c, l := range goLayouts {
		fmt.Fprintf(&b, "EQUAL(sizeof(%s), %d);\nEQUAL(_Alignof(%s), %d);\n", c, l.Size, c, l.Align)
		for f, offset := range l.Fields {
			fmt.Fprintf(&b, "EQUAL(offsetof(%s, %s), %d);\n", c, f, offset)
			fields++
		}
	}
	for c, size := range goSizes {
		fmt.Fprintf(&b, "EQUAL(sizeof(%s), %d);\n", c, size)
	}
	fmt.Fprintf(&b, "EQUAL(nvmlMemory_v2, %d);\n", Memory_v2_VERSION)
	source := filepath.Join(t.TempDir(), "layout.c")
	require.NoError(t, os.WriteFile(source, b.Bytes(), 0o600))
	out, err := exec.Command(cc, "-std=c11", "-fsyntax-only", "-I", filepath.Dir(header), source).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Greater(t, fields, 500)
	t.Logf("%d records with %d fields, %d other types", len(goLayouts), fields, len(goSizes))
}

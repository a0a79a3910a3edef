// The race detector allocates more for each small value.

//go:build !race

package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// A header is read within four times its size: all bytes that are allocated count.
func TestReadHeaderMemory(t *testing.T) {
	entries := func(n int, shape string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"%x":{"dtype":"I8","shape":[%s],"data_offsets":[0,0]}`, i, shape)
		}
		return "{" + b.String()[1:] + "}"
	}
	texts := func(n int, key, value string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"%s%x":"%s"`, key, i, value)
		}
		return `{"__metadata__":{` + b.String()[1:] + "}}"
	}
	for name, header := range map[string]string{
		"vectors":     entries(40_000, "0"),
		"four sizes":  entries(40_000, "0,128,128,128"),
		"many sizes":  entries(20_000, "0,1,1,1,1,1,1,1"),
		"a long text": texts(1, "k", strings.Repeat("x", 2<<20)),
		"long texts":  texts(10_000, strings.Repeat("key", 10), strings.Repeat("value", 20)),
		"spaces":      "{" + strings.Repeat(" ", 2<<20) + "}",
	} {
		file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h, err := safetensors.ReadHeader(bytes.NewReader(file), int64(len(file)))
		runtime.ReadMemStats(&after)
		require.NoError(t, err, name)
		runtime.KeepAlive(h)
		allocated := after.TotalAlloc - before.TotalAlloc
		t.Logf("%-12s %8d bytes, %.1f times", name, len(header), float64(allocated)/float64(len(header)))
		require.LessOrEqual(t, allocated, uint64(4*len(header)+128<<10), name)
	}
}

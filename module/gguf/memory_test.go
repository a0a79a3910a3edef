// The race detector allocates more for each small value.

//go:build !race

package gguf_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module/gguf"
)

// Headers of each kind of content are read within four times their size. All bytes that are allocated count.
func TestReadHeaderMemory(t *testing.T) {
	entries := func(n int, value func(i int) []any) []byte {
		var b bytes.Buffer
		b.Write(head(0, uint64(n)))
		for i := range n {
			b.Write(raw(append([]any{fmt.Sprintf("%x", i)}, value(i)...)...))
		}
		return b.Bytes()
	}
	array := func(kind uint32, n int, element ...any) []byte {
		return append(append(head(0, 1), raw("k", uint32(9), kind, uint64(n))...), bytes.Repeat(raw(element...), n)...)
	}
	tensors := func(n int, dims ...uint64) []byte {
		var b bytes.Buffer
		b.Write(head(uint64(n), 0))
		for i := range n {
			b.Write(entry(fmt.Sprintf("%x", i), dims, 24, uint64(i)*32))
		}
		return append(b.Bytes(), make([]byte, 32+32*n)...)
	}
	for name, c := range map[string]struct {
		file   []byte
		header int
	}{
		"bools":          {array(7, 2<<20, uint8(1)), 0},
		"bytes":          {array(0, 2<<20, uint8(1)), 0},
		"numbers":        {array(5, 1<<19, int32(7)), 0},
		"doubles":        {array(12, 1<<18, 1.5), 0},
		"empty strings":  {array(8, 1<<18, ""), 0},
		"short strings":  {array(8, 1<<18, "ab"), 0},
		"tokens":         {array(8, 1<<17, "Ġtoken"), 0},
		"one long text":  {append(append(head(0, 1), raw("k", uint32(8))...), raw(string(make([]byte, 2<<20)))...), 0},
		"small entries":  {entries(100_000, func(int) []any { return []any{uint32(0), uint8(1)} }), 0},
		"number entries": {entries(100_000, func(i int) []any { return []any{uint32(4), uint32(i + 1000)} }), 0},
		"text entries":   {entries(100_000, func(i int) []any { return []any{uint32(8), "x"} }), 0},
		"empty arrays":   {entries(100_000, func(i int) []any { return []any{uint32(9), uint32(4), uint64(0)} }), 0},
		"short arrays":   {entries(100_000, func(i int) []any { return []any{uint32(9), uint32(4), uint64(1), uint32(5)} }), 0},
		"scalars":        {tensors(60_000), 60_000 * 29},
		"vectors":        {tensors(60_000, 1), 60_000 * 37},
		"four sizes":     {tensors(60_000, 1, 1, 1, 1), 60_000 * 61},
	} {
		if c.header == 0 {
			c.header = len(c.file)
		}
		r := bytes.NewReader(c.file)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h, err := gguf.ReadHeader(r, int64(len(c.file)))
		runtime.ReadMemStats(&after)
		require.NoError(t, err, name)
		runtime.KeepAlive(h)
		allocated := after.TotalAlloc - before.TotalAlloc
		t.Logf("%-15s %8d bytes, %.1f times", name, c.header, float64(allocated)/float64(c.header))
		if testing.CoverMode() == "" {
			if allocated > uint64(4*c.header+256<<10) {
				t.Error(name)
			}
		}
	}
}

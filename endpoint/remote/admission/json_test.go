package admission_test

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
)

// The estimate is at least half of the memory of decoded JSON.
func TestJSONBytes(t *testing.T) {
	for name, text := range map[string]string{
		"numbers": "[" + strings.Repeat("0,", 1<<16) + "0]",
		"objects": "[" + strings.Repeat("{},", 1<<16) + "0]",
		"lists":   "[" + strings.Repeat("[],", 1<<16) + "0]",
		"fields":  "[" + strings.Repeat(`{"":0},`, 1<<16) + "0]",
		"texts":   "[" + strings.Repeat(`"",`, 1<<16) + "0]",
		"escapes": "[" + strings.Repeat(`"\",{[:",`, 1<<16) + "0]",
		"nested":  strings.Repeat(`{"a":[`, 1<<12) + strings.Repeat("]}", 1<<12),
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var value any
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		require.NoError(t, d.Decode(&value))
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(value)
		taken, estimate := int64(after.HeapAlloc)-int64(before.HeapAlloc), admission.JSONBytes([]byte(text), 96)
		t.Logf("%s: %d bytes take %d, estimated %d", name, len(text), taken, estimate)
		require.LessOrEqual(t, taken, 2*estimate+64<<10, name)
	}
}

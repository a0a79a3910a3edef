package message

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Metadata over the limits is refused, in a request as it is usually written and in one that only the general codec
// decodes.
func TestMetadataIsBounded(t *testing.T) {
	t.Parallel()
	many := Metadata{}
	for i := range MaxMetadata + 1 {
		many[fmt.Sprint("n", i)] = ""
	}
	for name, c := range map[string]struct {
		m    Metadata
		fine bool
	}{
		"a trace":          {Metadata{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, true},
		"as much as may":   {Metadata{"n": strings.Repeat("x", MaxMetadataBytes-1)}, true},
		"too many bytes":   {Metadata{"n": strings.Repeat("x", MaxMetadataBytes)}, false},
		"much too many":    {Metadata{"n": strings.Repeat("x", 1<<20)}, false},
		"too many":         {many, false},
		"a long name":      {Metadata{strings.Repeat("n", MaxMetadataName+1): "x"}, false},
		"no name":          {Metadata{"": "x"}, false},
		"upper case":       {Metadata{"N": "x"}, false},
		"a new line":       {Metadata{"n": "a\nb"}, false},
		"beyond ASCII":     {Metadata{"n": "é"}, false},
		"a control in it":  {Metadata{"n": "a\x7f"}, false},
		"a name with room": {Metadata{"a b": "x"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			plain, err := Marshal(Request{Op: OpCall, Body: RawMessage{0xa0}, Metadata: c.m})
			require.NoError(t, err)
			unknown := append([]byte{plain[0] + 1}, append(plain[1:len(plain):len(plain)], 9, 1)...) // with an unknown key
			for _, data := range [][]byte{plain, unknown} {
				got, err := ParseRequest(data)
				if !c.fine {
					require.ErrorIs(t, err, ErrBounds, "answered, and the connection goes on")
					require.ErrorIs(t, c.m.Check(), ErrBounds)
					continue
				}
				require.NoError(t, err)
				require.Equal(t, c.m, got.Metadata)
				require.NoError(t, c.m.Check())
			}
		})
	}
	for name, item := range map[string][]byte{
		"a number":     {1},
		"a list":       {0x80},
		"numbers":      {0xa1, 1, 2},
		"a number in":  {0xa1, 0x61, 'a', 2},
		"a name twice": {0xa2, 0x61, 'a', 0x60, 0x61, 'a', 0x60},
		"bytes":        {0xa1, 0x41, 'a', 0x60},
		"deep":         {0xa1, 0x61, 'a', 0x81, 0x60},
	} {
		_, err := ParseRequest(append([]byte{0xa3, 1, 1, 3, 0xa0, 4}, item...))
		require.ErrorIs(t, err, ErrEncoding, name)
		require.NotErrorIs(t, err, ErrBounds, name)
	}
}

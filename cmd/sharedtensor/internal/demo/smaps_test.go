package demo

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const smapsText = `00400000-0048a000 r-xp 00000000 fd:03 960637                             /bin/some program
Size:                552 kB
Rss:                 460 kB
Pss:                 100 kB
Pss_Dirty:             0 kB
Private_Clean:        60 kB
Private_Dirty:         4 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0004000000 r--s 00000000 00:01 1057                       /memfd:sharedtensor (deleted)
Rss:               65536 kB
Pss:               16384 kB
Private_Clean:         7 kB
Private_Dirty:         7 kB
7f0004000000-7f0008000000 rw-s 00000000 00:01 1057                       /memfd:sharedtensor (deleted)
Pss:                   1 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Pss:                 128 kB
Private_Clean:         0 kB
Private_Dirty:       128 kB
`

func TestParseSmaps(t *testing.T) {
	u, err := parseSmaps(strings.NewReader(smapsText))
	require.NoError(t, err)
	require.Equal(t, usage{pss: 16385 << 10, private: (64 + 128) << 10, objects: []string{"00:01:1057"}}, u)
}

func TestParseSmapsRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":   "",
		"no shares": "00400000-0048a000 r-xp 00000000 fd:03 960637 /bin/x\nRss: 4 kB\n",
		"no unit":   "Pss: 12\n",
		"negative":  "7f0000000000-7f0004000000 r--s 00000000 00:01 1057 /memfd:sharedtensor (deleted)\nPss: -12 kB\n",
		"too large": "7f0000000000-7f0004000000 r--s 00000000 00:01 1057 /memfd:sharedtensor (deleted)\nPss: 4398046511104000 kB\n",
		"words":     "Pss: 1 kB\nPrivate_Dirty: many kB\n",
		"long line": strings.Repeat("x", 2<<20),
	} {
		if name == "no unit" { // the unit is only parsed for the model's mappings
			text = "7f0000000000-7f0004000000 r--s 00000000 00:01 1057 /memfd:sharedtensor (deleted)\n" + text
		}
		_, err := parseSmaps(strings.NewReader(text))
		require.ErrorIs(t, err, errSmaps, name)
	}
}

func FuzzParseSmaps(f *testing.F) {
	f.Add(smapsText)
	f.Fuzz(func(t *testing.T, text string) {
		u, err := parseSmaps(strings.NewReader(text))
		if err != nil {
			require.Equal(t, usage{}, u)
			require.ErrorIs(t, err, errSmaps)
			return
		}
		require.GreaterOrEqual(t, u.pss, int64(0))
		require.GreaterOrEqual(t, u.private, int64(0))
	})
}

func TestJudge(t *testing.T) {
	model := &Model{Bytes: 10 << 20, Mapped: 11 << 20}
	for _, c := range []struct {
		memory  Memory
		ok, one bool
	}{
		{Memory{Processes: 4, Objects: 1, PSS: 10 << 20}, true, true},
		{Memory{Processes: 4, Objects: 1, PSS: 11 << 20}, true, true},
		{Memory{Processes: 4, Objects: 1, PSS: 12 << 20}, false, false},
		{Memory{Processes: 4, Objects: 2, PSS: 10 << 20}, false, false},
		{Memory{Processes: 4, Objects: 1, PSS: 1 << 20}, true, false},
	} {
		err := c.memory.judge(model)
		require.Equal(t, c.ok, err == nil, "%+v", c.memory)
		require.Equal(t, c.one, c.memory.OneCopy, "%+v", c.memory)
	}
}

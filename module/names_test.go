package module

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// The index agrees with a map for many names, added together and one by one.
func TestNameIndex(t *testing.T) {
	t.Parallel()
	var none nameIndex
	_, found := none.find(nil, "a")
	require.False(t, found)

	random := rand.New(rand.NewPCG(1, 2))
	var names []string
	known := map[string]int{}
	for len(names) < 5000 {
		name := strconv.Itoa(random.IntN(20_000))
		if _, twice := known[name]; !twice {
			known[name] = len(names)
			names = append(names, name)
		}
	}
	for _, first := range []int{0, 1, 7, 8, 9, 3000, len(names)} {
		x, twice := indexNames(names[:first])
		require.Equal(t, -1, twice)
		for n := first + 1; n <= len(names); n++ {
			x.add(names[:n])
		}
		for i := range 20_000 {
			name := strconv.Itoa(i)
			at, found := x.find(names, name)
			want, is := known[name]
			require.Equal(t, is, found, name)
			if is {
				require.Equal(t, want, at, name)
			}
		}
	}
	_, twice := indexNames(append(names, names[17]))
	require.Equal(t, len(names), twice)
}

// While memory is allocated nothing is copied, and the disk works.
func TestReadAheadLeadsFartherBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	var r readAhead
	require.False(t, r.leads(readAheadHead-1))
	require.True(t, r.leads(readAheadHead))
	r.advance(0)
	require.False(t, r.leads(readAheadHead-1), "nothing is copied yet")
	r.advance(10)
	require.False(t, r.leads(10+readAheadLead-1))
	require.True(t, r.leads(10+readAheadLead))
}

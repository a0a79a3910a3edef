package host

import (
	"math"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// tree returns a system with the given files.
func tree(files map[string]string) system {
	root := fstest.MapFS{}
	for name, text := range files {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return system{root}
}

func TestHugePolicy(t *testing.T) {
	for text, want := range map[string]hugePolicy{
		"":    hugeNever,
		"odd": hugeNever,
		"always within_size advise [never] deny force\n": hugeNever,
		"always within_size advise never [deny] force\n": hugeNever,
		"always within_size [advise] never deny force\n": hugeAdvise,
		"[always] within_size advise never deny force\n": hugeAlways,
		"always [within_size] advise never deny force\n": hugeAlways,
	} {
		require.Equal(t, want, tree(map[string]string{shmemEnabled: text}).hugePolicy(), "%q", text)
	}
	require.Equal(t, hugeNever, tree(nil).hugePolicy())
}

func TestAvailable(t *testing.T) {
	const meminfo = "MemTotal:  1000 kB\nMemAvailable:     600 kB\nSwapFree:   40 kB\nHugePages_Total: 0\n"
	for _, test := range []struct {
		name   string
		files  map[string]string
		want   int64
		source string
	}{
		{"nothing told", nil, math.MaxInt64, "unknown"},
		{"garbage", map[string]string{"proc/meminfo": "MemAvailable: x kB\n\n:\n", "proc/self/cgroup": "\n0\n::::\n"}, math.MaxInt64, "unknown"},
		{"no groups", map[string]string{"proc/meminfo": meminfo}, 640 * 1024, "meminfo"},
		{"version 2", map[string]string{
			"proc/meminfo":                     meminfo,
			"proc/self/cgroup":                 "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max":     "max\n",
			"sys/fs/cgroup/a/b/memory.current": "9000\n",
			"sys/fs/cgroup/a/memory.max":       "100000\n",
			"sys/fs/cgroup/a/memory.current":   "90000\n",
			"sys/fs/cgroup/a/memory.stat":      "anon 1\ninactive_file 2000\nactive_file 300\n",
		}, 12300, "sys/fs/cgroup/a"},
		{"version 2 in a container", map[string]string{
			"proc/meminfo":                 meminfo,
			"proc/self/cgroup":             "0::/not/here\n",
			"sys/fs/cgroup/memory.max":     "5000\n",
			"sys/fs/cgroup/memory.current": "1000\n",
		}, 4000, "sys/fs/cgroup"},
		{"over its limit", map[string]string{
			"proc/self/cgroup":             "0::/\n",
			"sys/fs/cgroup/memory.max":     "5000\n",
			"sys/fs/cgroup/memory.current": "6000\n",
		}, 0, "sys/fs/cgroup"},
		{"version 1", map[string]string{
			"proc/meminfo":     meminfo,
			"proc/self/cgroup": "5:cpu,cpuacct:/x\n4:hugetlb,memory:/x\n0::/\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "20000\n",
			"sys/fs/cgroup/memory/x/memory.usage_in_bytes": "15000\n",
			"sys/fs/cgroup/memory/x/memory.stat":           "inactive_file 1\nactive_file 1\ntotal_inactive_file 100\ntotal_active_file 11\n",
		}, 5111, "sys/fs/cgroup/memory/x"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, source := tree(test.files).available()
			require.Equal(t, test.want, got)
			require.Contains(t, source, test.source)
		})
	}
}

func TestFeaturesExplain(t *testing.T) {
	s := tree(map[string]string{shmemEnabled: "always [never]", "proc/meminfo": "MemAvailable: 10 kB\n"})
	require.Error(t, s.hugeFeature().Err)
	require.Contains(t, s.hugeFeature().Advice, "advise")
	require.ErrorContains(t, s.memoryFeature().Err, "MemAvailable")
	require.EqualValues(t, 10240, s.memoryFeature().Bytes)
	// The number for "no known limit" is not reported as bytes.
	require.Zero(t, tree(nil).memoryFeature().Bytes)
	require.Contains(t, tree(nil).memoryFeature().Detail, "not known")
	require.ErrorContains(t, s.bootIDFeature().Err, bootIDPath)
	require.ErrorContains(t, tree(nil).hugeFeature().Err, "huge pages")
}

// The limit is the machine's memory, or the smallest limit of the control groups, with its origin.
func TestMemoryLimit(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64
		why   string
	}{
		{"no groups", nil, 1 << 30, "this machine's memory"},
		{"no limit", map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 1 << 30, "this machine's memory"},
		{"a limit above the memory", map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "2000000000\n"}, 1 << 30, "this machine's memory"},
		{"the group above is tighter", map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "5000\n", "sys/fs/cgroup/a/memory.max": "4000\n",
		}, 4000, "the memory limit of control group /sys/fs/cgroup/a"},
		{"version 1", map[string]string{
			"proc/self/cgroup": "5:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "3000\n",
		}, 3000, "the memory limit of control group /sys/fs/cgroup/memory/x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bytes, why := tree(c.files).limit(1 << 30)
			require.Equal(t, c.want, bytes)
			require.Equal(t, c.why, why)
		})
	}
}

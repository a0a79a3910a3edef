package host

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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

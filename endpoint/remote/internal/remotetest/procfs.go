package remotetest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// ProcStatus returns a number of a process's status in /proc, such as VmRSS and VmHWM (in KiB) or Threads. It skips the
// test if the system has no /proc.
func ProcStatus(t testing.TB, pid int, key string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	drivertest.Needs(t, "procfs", err == nil, "the resources of other processes are counted in /proc")
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, key+":"); found {
			n, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("/proc/%d/status has no %s", pid, key)
	return 0
}

// OpenFiles returns the number of open descriptors of a process. It skips the test if the system has no /proc.
func OpenFiles(t testing.TB, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	drivertest.Needs(t, "procfs", err == nil, "the descriptors of other processes are counted in /proc")
	return len(list)
}

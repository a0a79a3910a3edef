//go:build linux

package gpu_test

import (
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// xidLine is how the kernel's driver reports an error of a GPU.
var xidLine = regexp.MustCompile(`NVRM: Xid \([^)]*\): (\d+)[^\n]*`)

// xids are all reports in the kernel's log; nil where it cannot be read.
func xids() []string {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	found := []string{}
	buf := make([]byte, 8192) // a record fits; each read gives one
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EPIPE { // records were overwritten, go on
			continue
		}
		if err != nil || n <= 0 {
			return found
		}
		if m := xidLine.FindString(string(buf[:n])); m != "" {
			found = append(found, m)
		}
	}
}

// newXids says which reports came after before.
func newXids(before []string) string {
	now := xids()
	if before == nil || now == nil {
		return "the kernel's log cannot be read here"
	}
	if len(now) <= len(before) {
		return "no Xid in the kernel's log"
	}
	var codes []string
	for _, line := range now[len(before):] {
		codes = append(codes, xidLine.FindStringSubmatch(line)[1])
	}
	slices.Sort(codes)
	return "Xid " + strings.Join(slices.Compact(codes), ", ") + " in the kernel's log"
}

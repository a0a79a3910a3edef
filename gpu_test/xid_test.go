//go:build linux

package gpu_test

import (
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// xidLine matches GPU errors in the kernel log.
var xidLine = regexp.MustCompile(`NVRM: Xid \([^)]*\): (\d+)[^\n]*`)

// xids returns all GPU errors in the kernel log, or nil if the log cannot be read.
func xids() []string {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	found := []string{}
	buf := make([]byte, 8192) // holds one record, the result of each read
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EPIPE { // older records were overwritten
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

// newXids returns the errors that were logged after before was read.
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

package host

import (
	"bufio"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// system reads the kernel's files below /proc and /sys. Tests replace the root.
type system struct{ root fs.FS }

func systemFrom(dir string) system { return system{os.DirFS(dir)} }

// hugePolicy is the kernel's rule for huge pages in shared memory (Documentation/admin-guide/mm/transhuge.rst).
type hugePolicy int

const (
	hugeNever  hugePolicy = iota // none, or the kernel has no huge pages
	hugeAdvise                   // if the mapping is advised with MADV_HUGEPAGE and touched
	hugeAlways                   // wherever they fit
)

const shmemEnabled = "sys/kernel/mm/transparent_hugepage/shmem_enabled"

// hugeSetting returns the word in brackets in the kernel's list, such as "advise", or "".
func (s system) hugeSetting() string {
	text := s.read(shmemEnabled)
	_, rest, _ := strings.Cut(text, "[")
	word, _, ok := strings.Cut(rest, "]")
	if !ok {
		return ""
	}
	return word
}

func (s system) hugePolicy() hugePolicy {
	switch s.hugeSetting() {
	case "advise":
		return hugeAdvise
	case "always", "within_size", "force":
		return hugeAlways
	}
	return hugeNever
}

// available returns how much memory can be allocated before the kernel kills processes, and the origin of the limit. It
// is an estimate, because other processes allocate too. Without information it is the largest number.
func (s system) available() (bytes int64, source string) {
	bytes, source = math.MaxInt64, "unknown"
	if mem := table(s.read("proc/meminfo")); mem["MemAvailable"] > 0 {
		bytes, source = (mem["MemAvailable"]+mem["SwapFree"])*1024, "MemAvailable and SwapFree of /proc/meminfo"
	}
	for _, g := range s.memoryGroups() {
		if room, ok := g.room(); ok && room < bytes {
			bytes, source = room, "memory limit of control group "+g.dir
		}
	}
	return bytes, source
}

// memoryGroup is one directory of the control group hierarchy, with the file names of its version.
type memoryGroup struct {
	system           system
	dir              string
	limitName, usage string
}

// memoryGroups returns the control groups whose limits apply to this process: its own and all above it.
func (s system) memoryGroups() []memoryGroup {
	var groups []memoryGroup
	for line := range strings.Lines(s.read("proc/self/cgroup")) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		g := memoryGroup{system: s}
		switch controllers := strings.Split(fields[1], ","); {
		case fields[0] == "0" && fields[1] == "":
			g.dir, g.limitName, g.usage = "sys/fs/cgroup", "memory.max", "memory.current"
		case slices.Contains(controllers, "memory"):
			g.dir, g.limitName, g.usage = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
		default:
			continue
		}
		// In a container the path may be the host's and not exist; the directory at the top is then this process's
		// group.
		top := g.dir
		for p := path.Clean("/" + fields[2]); ; p = path.Dir(p) {
			g.dir = path.Join(top, p)
			groups = append(groups, g)
			if p == "/" {
				break
			}
		}
	}
	return groups
}

// room returns how much the group may still allocate. Its page cache counts as free, because it is reclaimed first.
func (g memoryGroup) room() (int64, bool) {
	limit, ok := g.number(g.limitName)
	if !ok {
		return 0, false // "max", or no such file
	}
	used, ok := g.number(g.usage)
	if !ok {
		return 0, false
	}
	stat := table(g.system.read(path.Join(g.dir, "memory.stat")))
	cache := stat["inactive_file"] + stat["active_file"]
	if total := stat["total_inactive_file"] + stat["total_active_file"]; total > cache {
		cache = total // version 1: including the groups below
	}
	return max(limit-max(used-cache, 0), 0), true
}

func (g memoryGroup) number(name string) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(g.system.read(path.Join(g.dir, name))), 10, 64)
	return n, err == nil
}

// read returns the file's text, or "" if it cannot be read: every caller treats that as missing.
func (s system) read(name string) string {
	text, err := fs.ReadFile(s.root, name)
	if err != nil {
		return ""
	}
	return string(text)
}

// table parses lines of a name, an optional colon and a number.
func table(text string) map[string]int64 {
	rows := map[string]int64{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			rows[strings.TrimSuffix(fields[0], ":")] = n
		}
	}
	return rows
}

// MemoryLimit implements [driver.Device]: the memory of this machine, or the smallest limit of the control groups that
// this process is in.
func (d *Device) MemoryLimit() (bytes int64, why string) {
	return d.system.limit(d.info.TotalBytes)
}

// limit returns the smallest of total and the limits of the control groups, and its origin.
func (s system) limit(total int64) (bytes int64, why string) {
	bytes, why = total, "this machine's memory"
	for _, g := range s.memoryGroups() {
		if n, ok := g.number(g.limitName); ok && n > 0 && (bytes <= 0 || n < bytes) {
			bytes, why = n, fmt.Sprintf("the memory limit of control group /%s", g.dir)
		}
	}
	return bytes, why
}

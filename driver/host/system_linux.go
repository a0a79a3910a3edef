package host

import (
	"bufio"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// system reads what the kernel tells of itself, below /proc and /sys. Tests put another tree in its place.
type system struct{ root fs.FS }

func systemFrom(dir string) system { return system{os.DirFS(dir)} }

// hugePolicy is the kernel's rule for huge pages in shared memory (Documentation/admin-guide/mm/transhuge.rst).
type hugePolicy int

const (
	hugeNever  hugePolicy = iota // none, or the kernel has no huge pages
	hugeAdvise                   // where the mapping is advised with MADV_HUGEPAGE and touched
	hugeAlways                   // wherever they fit
)

const shmemEnabled = "sys/kernel/mm/transparent_hugepage/shmem_enabled"

// hugeSetting is the word in brackets in the kernel's list, such as "advise"; empty where there is none.
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

// available is how much memory can be taken before something has to be killed, and whose bound it is. It is an
// estimate: other processes take memory too. Where the kernel tells nothing it is the largest number.
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

// memoryGroup is one directory of the control group hierarchy, with the names that its version has for the files.
type memoryGroup struct {
	system           system
	dir              string
	limitName, usage string
}

// memoryGroups are the control groups whose limits bind this process: its own and all above it.
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
		// In a container the path may be the host's, and not be there; the directory at the top then is our own group.
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

// room is what the group may still take. The page cache that it is charged with is counted as free: it is given up
// first.
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
		cache = total // version 1: with the groups below
	}
	return max(limit-max(used-cache, 0), 0), true
}

func (g memoryGroup) number(name string) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(g.system.read(path.Join(g.dir, name))), 10, 64)
	return n, err == nil
}

// read returns the file's text, empty where it cannot be had: every reader treats that as nothing said.
func (s system) read(name string) string {
	text, err := fs.ReadFile(s.root, name)
	if err != nil {
		return ""
	}
	return string(text)
}

// table reads lines of a name, an optional colon and a number.
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

//go:build linux

// Package machine describes the machine on which the GPU suites run. Containers, WSL, MIG and missing IMEX channels limit
// what a GPU can do. The suites report these limits instead of failing.
package machine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine describes the machine, as far as it is visible to this process.
type Machine struct {
	// Kernel is the release of the kernel.
	Kernel string
	// GPUs are the names of the GPUs that the kernel driver lists. WSL lists none.
	GPUs []string
	// Driver is the version of the kernel driver. It is empty if the driver is not loaded.
	Driver string
	// Container is the kind of container, such as docker. It is empty outside of containers.
	Container string
	// WSL reports whether the kernel is that of the Windows Subsystem for Linux.
	WSL bool
	// MIGInstances is the number of GPU instances of MIG.
	MIGInstances int
	// IMEX describes the channels that fabric handles need.
	IMEX IMEX
	// Admin reports whether this process has CAP_SYS_ADMIN, and may create namespaces without a user namespace.
	Admin bool
	// UserNamespaces reports whether the kernel's settings let processes without rights create user namespaces.
	UserNamespaces bool
	// SharedBytes is the size of /dev/shm in bytes, 0 if it is missing. Many containers have 64 MiB.
	SharedBytes int64
	// LockedBytes is the limit of locked memory in bytes, -1 for none.
	LockedBytes int64
}

// IMEX describes the IMEX channels of this machine.
type IMEX struct {
	// Driver reports whether the kernel driver supports channels.
	Driver bool
	// Channels is the number of channels in /dev. Usable is the number of channels that this process may open.
	Channels, Usable int
}

// Detect describes this machine.
func Detect() Machine {
	m := detect("/", os.Getenv)
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil {
		m.LockedBytes = -1
		if limit.Cur < 1<<62 {
			m.LockedBytes = int64(limit.Cur)
		}
	}
	var stat unix.Statfs_t
	if unix.Statfs("/dev/shm", &stat) == nil {
		m.SharedBytes = int64(stat.Blocks) * stat.Bsize
	}
	return m
}

// detect reads the files below root, which is / except in tests.
func detect(root string, getenv func(string) string) Machine {
	f := files(root)
	m := Machine{Kernel: f.text("proc/sys/kernel/osrelease"), Driver: f.driver(), Container: f.container(getenv)}
	release := strings.ToLower(m.Kernel)
	m.WSL = strings.Contains(release, "microsoft") || strings.Contains(release, "wsl") || f.has("dev/dxg")
	for _, path := range f.glob("proc/driver/nvidia/gpus/*/information") {
		m.GPUs = append(m.GPUs, field(path, "Model:"))
	}
	m.MIGInstances = len(f.glob("proc/driver/nvidia/capabilities/gpu*/mig/gi*"))
	m.IMEX.Driver = strings.Contains(f.text("proc/devices"), "nvidia-caps-imex-channels")
	for _, path := range f.glob("dev/nvidia-caps-imex-channels/channel*") {
		m.IMEX.Channels++
		if c, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
			c.Close()
			m.IMEX.Usable++
		}
	}
	rights, _ := strconv.ParseUint(field(f.path("proc/self/status"), "CapEff:"), 16, 64) // 0 if it cannot be read
	m.Admin = rights>>unix.CAP_SYS_ADMIN&1 == 1
	m.UserNamespaces = f.text("proc/sys/user/max_user_namespaces") != "0" &&
		f.text("proc/sys/kernel/unprivileged_userns_clone") != "0" &&
		f.text("proc/sys/kernel/apparmor_restrict_unprivileged_userns") != "1"
	return m
}

// files is the root of a file system.
type files string

func (f files) path(name string) string { return filepath.Join(string(f), name) }

func (f files) has(name string) bool {
	_, err := os.Lstat(f.path(name))
	return err == nil
}

// text returns the content of a file without surrounding space. It is empty if the file cannot be read.
func (f files) text(name string) string {
	data, _ := os.ReadFile(f.path(name)) // best effort
	return string(bytes.TrimSpace(data))
}

func (f files) glob(pattern string) []string {
	paths, _ := filepath.Glob(f.path(pattern)) // fails only for a malformed pattern
	return paths
}

// field returns the rest of the line that begins with the name.
func field(path, name string) string {
	data, _ := os.ReadFile(path) // best effort
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// driver returns the version of the kernel driver. The file contains the number alone, or "NVRM version: NVIDIA UNIX ...
// Kernel Module 580.95.05 Release Build ...".
func (f files) driver() string {
	for _, name := range []string{"sys/module/nvidia/version", "proc/driver/nvidia/version"} {
		for _, word := range strings.Fields(f.text(name)) {
			if strings.Contains(word, ".") && strings.Trim(word, "0123456789.") == "" {
				return word
			}
		}
	}
	return ""
}

// container returns the kind of container by the files and variables that container engines set.
func (f files) container(getenv func(string) string) string {
	switch {
	case getenv("KUBERNETES_SERVICE_HOST") != "":
		return "kubernetes"
	case f.has(".dockerenv"):
		return "docker"
	case f.has("run/.containerenv"):
		return "podman"
	case strings.Contains(f.text("proc/version"), "gVisor"):
		return "gvisor"
	}
	for variable := range bytes.SplitSeq([]byte(f.text("proc/1/environ")), []byte{0}) {
		if kind, ok := bytes.CutPrefix(variable, []byte("container=")); ok {
			return string(kind)
		}
	}
	groups := f.text("proc/1/cgroup")
	for _, kind := range []string{"kubepods", "docker", "containerd", "lxc"} {
		if strings.Contains(groups, kind) {
			return kind
		}
	}
	for mount := range strings.Lines(f.text("proc/self/mountinfo")) {
		words := strings.Fields(mount)
		if len(words) > 4 && words[4] == "/" && strings.Contains(mount, " - overlay ") {
			return "overlay root"
		}
	}
	return ""
}

// Limits names the properties that take features of the GPU away. It is empty on plain Linux with whole GPUs.
func (m Machine) Limits() string {
	var limits []string
	if m.Container != "" {
		limits = append(limits, "container ("+m.Container+")")
	}
	if m.WSL {
		limits = append(limits, "WSL")
	}
	if m.MIGInstances > 0 {
		limits = append(limits, "MIG")
	}
	return strings.Join(limits, ", ")
}

// Row is a property in a report.
type Row struct {
	// Name is the property, Value its state.
	Name, Value string
	// Effect names the tests that it prevents or limits. It is empty if there is none.
	Effect string
}

// Rows returns the properties for a report.
func (m Machine) Rows() []Row {
	rows := []Row{
		{Name: "system", Value: fmt.Sprintf("linux/%s, kernel %s, %d processors", runtime.GOARCH, m.Kernel, runtime.NumCPU())},
		{Name: "GPUs", Value: or(strings.Join(m.GPUs, ", "), "none in /proc/driver/nvidia")},
		{Name: "kernel driver", Value: or(m.Driver, "not loaded")},
		{"container", or(m.Container, "no"), effect(m.Container != "", "memory and namespaces may be limited")},
		{"WSL", yesNo(m.WSL), effect(m.WSL, "sharing and managed memory are limited by the Windows driver")},
		{"MIG", or(plural(m.MIGInstances, "GPU instance"), "off"), effect(m.MIGInstances > 0, "no copies between GPUs, no fabric")},
		m.IMEX.row(),
	}
	namespaces := m.Admin || m.UserNamespaces
	rows = append(rows, Row{"namespaces", map[bool]string{true: "can be created", false: "cannot be created"}[namespaces],
		effect(!namespaces, "facts about namespaces are not measured")})
	const small = 1 << 30
	return append(rows,
		Row{"/dev/shm", fmt.Sprintf("%d MiB", m.SharedBytes>>20), effect(m.SharedBytes < small, "smaller than 1 GiB: interprocess events may fail")},
		Row{"locked memory", lockedText(m.LockedBytes), effect(m.LockedBytes >= 0 && m.LockedBytes < small, "pinning large memory may fail")})
}

func (x IMEX) row() Row {
	const none = "fabric handles are not tested"
	switch {
	case x.Usable > 0:
		return Row{Name: "IMEX", Value: fmt.Sprintf("%d of %s usable", x.Usable, plural(x.Channels, "channel"))}
	case x.Channels > 0:
		return Row{"IMEX", plural(x.Channels, "channel") + ", not accessible to this user", none}
	case x.Driver:
		return Row{"IMEX", "the driver supports it, no channel in /dev", none}
	}
	return Row{"IMEX", "no", none}
}

func effect(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

func or(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// plural returns "3 things", or nothing for 0.
func plural(n int, noun string) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func yesNo(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

func lockedText(bytes int64) string {
	if bytes < 0 {
		return "unlimited"
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}

package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
)

// examineHost checks the requirements for sharing host memory.
func examineHost() []finding {
	findings := []finding{kernel()}
	dev, err := host.Open()
	features := host.Features
	if err == nil {
		defer dev.Close()
		features = dev.Features
	}
	for _, f := range features() {
		findings = append(findings, featureFinding(f))
	}
	if err != nil {
		return append(findings, fail("host memory", "", "%v", err))
	}
	findings = append(findings, probeFindings("host", dev)...)
	findings = append(findings, hostResults(dev))
	if f, found := shm(); found {
		findings = append(findings, f)
	}
	return findings
}

// kernel reports the version of the running kernel.
func kernel() finding {
	if runtime.GOOS != "linux" {
		return fail("kernel", "use Linux; on this system only files can be inspected", "%s has no sealed shared memory", runtime.GOOS)
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return warn("kernel", "mount /proc", "%v", err)
	}
	version := strings.TrimSpace(string(release))
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return ok("kernel", "Linux %s", version)
	}
	// Linux 5.1 added F_SEAL_FUTURE_WRITE (fcntl(2)). Distributions have backported it, so the check of the seal
	// decides.
	if major < 5 || major == 5 && minor < 1 {
		return warn("kernel", "use Linux 5.1 or newer", "Linux %s does not support F_SEAL_FUTURE_WRITE, unless it was backported", version)
	}
	return ok("kernel", "Linux %s", version)
}

// featureFinding converts a feature of the host device to a finding.
func featureFinding(f host.Feature) finding {
	detail, between, advice := f.Detail, " ", f.Advice
	if f.Err != nil {
		detail, between = f.Err.Error(), ": "
	}
	if f.Bytes > 0 {
		detail = strings.TrimSuffix(term.FormatBytes(f.Bytes)+between+detail, between)
	}
	if advice == "" {
		advice = sharingAdvice(f.Err)
	}
	switch {
	case f.Err == nil && detail == "":
		return ok(f.Name, "available")
	case f.Err == nil:
		return ok(f.Name, "%s", detail)
	case f.Required:
		return fail(f.Name, advice, "%s", detail)
	}
	return warn(f.Name, advice, "%s", detail)
}

// sharingAdvice returns advice for an error of a device.
func sharingAdvice(err error) string {
	switch {
	case errors.Is(err, driver.ErrOutOfMemory):
		return "free memory, or raise the limit"
	case errors.Is(err, os.ErrPermission):
		return "a sandbox forbids it: allow the system call in its seccomp or LSM profile"
	}
	return ""
}

// probeFindings probes every kind of handle that a device supports. A device that can share by at least one of them
// passes.
func probeFindings(name string, dev driver.Device) []finding {
	support := dev.Probe()
	usable := false
	for _, s := range support {
		usable = usable || s.Err == nil
	}
	var findings []finding
	for _, s := range support {
		check := "share " + name + " by " + string(s.Kind)
		switch {
		case s.Err == nil:
			findings = append(findings, ok(check, "export and import work"))
		case usable && s.Kind == driver.CUDAFabric && errors.Is(s.Err, errors.ErrUnsupported):
			findings = append(findings, ok(check, "not available; only hosts of an NVLink fabric need it (%v)", s.Err))
		case usable:
			findings = append(findings, warn(check, "", "%v", s.Err))
		default:
			findings = append(findings, fail(check, sharingAdvice(s.Err), "%v", s.Err))
		}
	}
	return findings
}

// gpuFiles exist if the kernel has an NVIDIA GPU for this process, independent of installed libraries: the driver's
// list, the device nodes, and the WSL device. /dev/nvidiactl is not included, because the library creates that node.
var gpuFiles = []string{"proc/driver/nvidia/gpus/*", "dev/nvidia[0-9]*", "dev/dxg"}

// hasGPU reports whether root, usually the host's file system, contains a file of a GPU.
func hasGPU(root fs.FS) bool {
	return slices.ContainsFunc(gpuFiles, func(pattern string) bool {
		found, _ := fs.Glob(root, pattern) // the only possible error is a malformed pattern
		return len(found) > 0
	})
}

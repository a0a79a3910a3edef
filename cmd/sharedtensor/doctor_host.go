package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
)

// examineHost looks at what sharing host memory needs.
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
	if f, found := shm(); found {
		findings = append(findings, f)
	}
	return findings
}

// kernel says which one runs.
func kernel() finding {
	if runtime.GOOS != "linux" {
		return fail("kernel", "run it on Linux; this system is good for inspecting files", "%s has no sealed shared memory", runtime.GOOS)
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
	// F_SEAL_FUTURE_WRITE came with 5.1 (fcntl(2)); distributions have carried it back, so what counts is the check of the seal.
	if major < 5 || major == 5 && minor < 1 {
		return warn("kernel", "use Linux 5.1 or newer", "Linux %s does not know F_SEAL_FUTURE_WRITE, unless it was carried back", version)
	}
	return ok("kernel", "Linux %s", version)
}

// featureFinding is a feature of the host device as a finding.
func featureFinding(f host.Feature) finding {
	switch {
	case f.Err == nil && f.Detail == "":
		return ok(f.Name, "nothing is in the way")
	case f.Err == nil:
		return ok(f.Name, "%s", humanBytes(f.Detail))
	case f.Required:
		return fail(f.Name, sharingAdvice(f.Err), "%s", humanBytes(f.Err.Error()))
	}
	// What can be done about an optional feature is in its error, behind the colon.
	reason, advice, _ := strings.Cut(humanBytes(f.Err.Error()), ": ")
	return warn(f.Name, advice, "%s", reason)
}

var manyBytes = regexp.MustCompile(`\b[0-9]{4,18} bytes\b`)

// humanBytes writes large numbers of bytes in a text as people read them.
func humanBytes(text string) string {
	return manyBytes.ReplaceAllStringFunc(text, func(found string) string {
		n, err := strconv.ParseInt(strings.TrimSuffix(found, " bytes"), 10, 64)
		if err != nil {
			return found
		}
		return formatBytes(n)
	})
}

// sharingAdvice says what to do about an error of a device.
func sharingAdvice(err error) string {
	switch {
	case errors.Is(err, driver.ErrOutOfMemory):
		return "free memory, or raise the limit that is named"
	case errors.Is(err, os.ErrPermission):
		return "a sandbox forbids it: allow the system call in its seccomp or LSM profile"
	}
	return ""
}

// probeFindings tries every kind of handle that a device knows. A device that can share by one of them is fit, whatever the others say.
func probeFindings(name string, dev driver.Prober) []finding {
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
			findings = append(findings, ok(check, "exported and imported again"))
		case usable:
			findings = append(findings, warn(check, "", "%v", s.Err))
		default:
			findings = append(findings, fail(check, sharingAdvice(s.Err), "%v", s.Err))
		}
	}
	return findings
}

// hasGPU tells whether the kernel has an NVIDIA GPU for this process, whatever libraries there are. The second device is that of WSL.
func hasGPU() bool {
	for _, path := range []string{"/dev/nvidiactl", "/dev/dxg"} {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	return false
}

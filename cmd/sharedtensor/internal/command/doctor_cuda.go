//go:build !nocuda

package command

import (
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/driver/cuda"
	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
	"github.com/sharedtensor/sharedtensor/driver/cuda/nvjitlink"
	"github.com/sharedtensor/sharedtensor/driver/cuda/nvrtc"
)

// examineCUDA checks the driver, every device, and every kind of handle of each device.
func examineCUDA() []finding {
	if err := cu.Load(""); err != nil {
		return []finding{noDriver(err)}
	}
	version, err := cuda.DriverVersion()
	if err != nil {
		return []finding{warn("CUDA driver", "check nvidia-smi", "%v", err)}
	}
	findings := []finding{ok("CUDA driver", "%s, for CUDA %s", cu.Path(), version)}
	devices, err := cuda.Devices()
	if err != nil {
		return append(findings, warn("CUDA devices", "check nvidia-smi and CUDA_VISIBLE_DEVICES", "%v", err))
	}
	for _, info := range devices {
		dev, err := cuda.Open(info.Index)
		if err != nil {
			findings = append(findings, fail(info.String(), "check nvidia-smi", "%v", err))
			continue
		}
		findings = append(findings, ok(info.String(), "%s, %s, %s", info.Name, term.FormatBytes(info.TotalBytes), uuidText(dev)))
		findings = append(findings, probeFindings(info.String(), dev)...)
		if err := dev.Close(); err != nil {
			findings = append(findings, fail(info.String(), "", "%v", err))
		}
	}
	return findings
}

// uuidText returns the UUID of a device with NVIDIA's prefix.
func uuidText(dev *cuda.Device) string {
	uuid := dev.Info().UUID
	if p, err := dev.Properties(); err == nil && p.GPU != uuid && !p.GPU.IsZero() {
		return fmt.Sprintf("MIG-%s of GPU-%s", uuid, p.GPU)
	}
	return "GPU-" + uuid.String()
}

// noDriver returns a finding for missing CUDA support. On a host without a GPU it is not a problem.
func noDriver(err error) finding {
	const check = "CUDA driver"
	if hasGPU(os.DirFS("/")) {
		return warn(check, "in a container, give it the driver's library: NVIDIA_DRIVER_CAPABILITIES=compute,utility",
			"there is a GPU and no library to use it: %v", err)
	}
	return ok(check, "no GPU, so only host memory can be shared (%v)", err)
}

// examineCompilers reports the libraries that compile and link GPU code at run time. Programs need them only for that, so a
// missing library is not a problem.
func examineCompilers() []finding {
	return []finding{
		compiler("NVRTC", nvrtc.Load(""), nvrtc.File, nvrtc.Version, "SHAREDTENSOR_LIBNVRTC"),
		compiler("nvJitLink", nvjitlink.Load(""), nvjitlink.File, nvjitlink.Version, "SHAREDTENSOR_LIBNVJITLINK"),
	}
}

func compiler(name string, err error, file func() string, version func() (major, minor int, err error), env string) finding {
	if err != nil {
		return ok(name, "not found; programs that compile kernels need it; %s sets its path", env)
	}
	major, minor, err := version()
	if err != nil {
		return warn(name, "install a complete library, or set "+env, "%s: %v", file(), err)
	}
	return ok(name, "%s, CUDA %d.%d", file(), major, minor)
}

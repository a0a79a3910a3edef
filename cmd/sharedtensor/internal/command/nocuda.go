//go:build nocuda

package command

import "os"

// examineCUDA reports that this build does not support GPUs.
func examineCUDA() []finding {
	if hasGPU(os.DirFS("/")) {
		return []finding{warn("CUDA", "use a build without -tags nocuda", "this program was built without CUDA, and there is a GPU")}
	}
	return []finding{ok("CUDA", "this program was built without CUDA, and there is no GPU")}
}

// examineCompilers returns no findings: this build does not compile GPU code.
func examineCompilers() []finding { return nil }

// readGPUs reports that this build does not read GPUs.
func readGPUs() ([]gpuUse, error) { return nil, errNoGPUReader }

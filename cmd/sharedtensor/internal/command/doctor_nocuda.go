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

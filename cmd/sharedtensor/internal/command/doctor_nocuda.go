//go:build nocuda

package command

import "os"

// examineCUDA says that this program cannot look.
func examineCUDA() []finding {
	if hasGPU(os.DirFS("/")) {
		return []finding{warn("CUDA", "use a sharedtensor that was built without -tags nocuda", "there is a GPU, and this program was built without CUDA")}
	}
	return []finding{ok("CUDA", "this program was built without it, and there is no GPU here")}
}

// Package nvjitlink links PTX, LTO-IR and cubins to a cubin at run time with NVIDIA's library nvJitLink. It needs neither cgo
// nor the CUDA toolkit to build, and neither a GPU nor a driver to link.
//
//	linked, err := nvjitlink.Link(ctx, []nvjitlink.Input{
//		nvjitlink.LTOIR("kernel.cu", kernel),
//		nvjitlink.LTOIR("library.cu", library),
//	}, nvjitlink.Options{Arch: "sm_90"})
//	if err != nil {
//		return err
//	}
//	module, err := device.LoadModule(linked.Code)
//
// [Link] is the typed layer. The other functions are those of nvJitLink.h under their names without the prefix nvJitLink; they
// are generated from the header. Package nvrtc compiles CUDA C++ to the inputs.
//
// # The library
//
// libnvJitLink is part of the CUDA toolkit and of the Python wheels nvidia-nvjitlink (CUDA 13) and
// nvidia-nvjitlink-cu12. It is opened at the first call, from the argument of [Load], else from the environment variable
// SHAREDTENSOR_LIBNVJITLINK, else from the first of the places that the documentation of package nvrtc lists. It links code of
// compilers up to its own version. Symbols are resolved at their first call: a function that the library lacks fails with an
// [*UnsupportedError]. Without a library, calls fail with an error that matches [ErrNoLibrary].
//
// # Verified
//
// The tests link with nvJitLink 13.5 and 12.9 on amd64, without a GPU. Libraries before CUDA 12.3 export functions under other
// names, and are not supported. Other versions, arm64 and running the code on a GPU are not tested.
package nvjitlink

// Package nvrtc compiles CUDA C++ to PTX, cubins and LTO-IR at run time with NVIDIA's library NVRTC. It needs neither cgo nor
// the CUDA toolkit to build, and neither a GPU nor a driver to compile.
//
//	binary, err := nvrtc.Compile(ctx, "scale.cu", source, nvrtc.Options{
//		Arch:  nvrtc.SM(9, 0),
//		Names: []string{"scale<float>"},
//	})
//	if err != nil {
//		return err // scale.cu:3:12: error: identifier "y" is undefined
//	}
//	module, err := device.LoadModule(binary.Code)
//	...
//	kernel, err := module.Function(binary.Names["scale<float>"])
//
// [Compile] is the typed layer. The other functions are those of nvrtc.h under their names without the prefix nvrtc; they
// are generated from the header.
//
// # The library
//
// libnvrtc is part of the CUDA toolkit and of the Python wheels nvidia-cuda-nvrtc (CUDA 13) and nvidia-cuda-nvrtc-cu12,
// which PyTorch installs. It is opened at the first call, from the first of these places:
//
//   - the argument of [Load]
//   - the environment variable SHAREDTENSOR_LIBNVRTC; there is no other place if it is set
//   - the dynamic linker's places, under the names libnvrtc.so.13, .so.12, .so.11.2 and .so
//   - lib64 and lib in CUDA_HOME and CUDA_PATH
//   - wheels in VIRTUAL_ENV and CONDA_PREFIX, and CONDA_PREFIX/lib
//   - /usr/local/cuda, /usr/local/cuda-* from the newest, and /opt/cuda
//   - wheels in ~/.local/lib, /usr/local/lib and /usr/lib
//
// The file libnvrtc-builtins must be in the same folder. Symbols are resolved at their first call: a function that the library
// lacks fails with an [*UnsupportedError]. Without a library, calls fail with an error that matches [ErrNoLibrary].
//
// # Verified
//
// The tests compile with NVRTC 13.5, 12.9 and 11.8 on amd64, without a GPU. Version 11.8 lacks LTO-IR, C++20
// and columns in diagnostics. Other versions, arm64 and running the code on a GPU are not tested.
package nvrtc

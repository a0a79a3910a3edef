// Package nvml reads the state of GPUs with NVIDIA's management library NVML, which is part of the driver: memory, the
// processes that hold it, utilisation, temperature, power, NVLink and MIG. It works without cgo, a context and GPU memory.
//
//	session, err := nvml.Open()
//	if err != nil {
//		return err
//	}
//	defer session.Close()
//	devices, err := session.Devices()
//	if err != nil {
//		return err
//	}
//	for _, d := range devices {
//		processes, err := d.Processes()
//		...
//	}
//
// [Open], [Session] and the methods of [Device] are the typed layer. The other functions are generated from nvml.h and have
// its names without the prefix nvml. A record with a version needs the constant of the same name, such as
// Memory_v2_VERSION, in its field Version.
//
// # The library
//
// libnvidia-ml.so.1 is opened at the first call, from the argument of [Load], else from the environment variable
// SHAREDTENSOR_LIBNVIDIA_ML, else by the dynamic linker, else from WSL's folder. Symbols are resolved at their first call. A
// function that the driver's library lacks fails with an [*UnsupportedError]; a value that a device does not report matches
// [errors.ErrUnsupported]. Without a library, calls fail with an error that matches [ErrNoLibrary].
//
// # Containers
//
// NVML reports process ids of the host's namespace. In a container with a separate namespace, these ids name other processes
// or none, and the driver may omit processes of other containers.
//
// # Verified
//
// The symbols are compared with libnvidia-ml 535 of Debian, and the layouts with a C compiler for nvml.h 13.5. The typed layer is
// tested on a stand-in, package nvmltest. Nothing has run on a GPU.
package nvml

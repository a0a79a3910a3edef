/* Names and texts of results, and cuGetProcAddress. */
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const struct { int code; const char *name, *text; } results[] = {
	{0, "CUDA_SUCCESS", "no error"},
	{1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
	{100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
	{201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
	{208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
	{217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
	{218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
	{304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
	{400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
	{500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{600, "CUDA_ERROR_NOT_READY", "device not ready"},
	{700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
	{704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
	{705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
	{709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
	{712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
	{713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
	{800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
	{801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
	{901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
	{903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not begun in this stream"},
	{904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
	{906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the default stream depend on a capturing one"},
	{907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
	{999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult find(int code, const char **out, bool text) {
	if (!out)
		return INVALID_VALUE;
	*out = NULL;
	for (size_t i = 0; i < sizeof results / sizeof *results; i++)
		if (results[i].code == code) {
			*out = text ? results[i].text : results[i].name;
			return OK;
		}
	return INVALID_VALUE;
}
EXPORT CUresult cuGetErrorName(int code, const char **out);
EXPORT CUresult cuGetErrorName(int code, const char **out) { return find(code, out, false); }
EXPORT CUresult cuGetErrorString(int code, const char **out);
EXPORT CUresult cuGetErrorString(int code, const char **out) { return find(code, out, true); }

/* cuGetProcAddress_v2 returns the newest form of the function in this library. It ignores versions above 0, because the library has
 * one form of most functions. Flag 2 selects the forms for default streams of threads of the functions that have one. */
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags, int *status);
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags, int *status) {
	static const char *suffix[] = {"_v4", "_v3", "_v2", ""}, *thread[] = {"_ptsz", "_ptds", ""};
	Dl_info self;
	if (!symbol || !out || version <= 0 || flags > 2 || !dladdr((void *)cuGetProcAddress_v2, &self))
		return INVALID_VALUE;
	void *lib = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	*out = NULL;
	for (size_t i = 0; lib && i < 4 && !*out; i++)
		for (size_t k = flags & 2 ? 0 : 2; k < 3 && !*out; k++) {
			char name[128];
			snprintf(name, sizeof name, "%s%s%s", symbol, suffix[i], thread[k]);
			*out = dlsym(lib, name);
		}
	if (lib)
		dlclose(lib);
	if (status)
		*status = *out ? 0 : 1;
	return *out ? OK : NOT_FOUND;
}

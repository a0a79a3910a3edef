/* A driver with a few almost empty functions, to measure the cost of a call, and to test pointers into Go's stacks and missing
 * functions. */
#include <stddef.h>
#include <stdint.h>

typedef struct { char b[64]; } handle64;

int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }

int cuDriverGetVersion(int *version)
{
	*version = 12040;
	return 0;
}

int cuCtxSynchronize(void) { return 0; }

int cuMemAlloc_v2(uint64_t *dptr, size_t bytes)
{
	*dptr = (uint64_t)bytes + 1000000;
	return 0;
}

/* The C ABI does not define the upper half of the result register, so set it. */
int64_t cuMemFree_v2(uint64_t dptr) { return dptr == 0 ? 0x1234567800000001 : -4294967296; }

int cuIpcOpenMemHandle_v2(uint64_t *dptr, handle64 h, unsigned flags)
{
	uint64_t sum = flags;
	for (int i = 0; i < 64; i++)
		sum = sum * 31 + (unsigned char)h.b[i];
	*dptr = sum;
	return 0;
}

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **params, void **extra)
{
	(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream;
	return extra == NULL && params != NULL ? *(int *)params[0] : 1;
}

int cuMemsetD8_v2(uint64_t p, unsigned char c, size_t n) { (void)p, (void)c, (void)n; return 101; }
int cuMemsetD8_v2_ptds(uint64_t p, unsigned char c, size_t n) { (void)p, (void)c, (void)n; return 102; }

/* The result is the flags, so that the test can read them. */
int cuGetProcAddress_v2(const char *symbol, uint64_t *pfn, int version, uint64_t flags, int *status)
{
	(void)symbol, (void)version, (void)status;
	*pfn = flags;
	return 0;
}

/* Calls fn on the caller's thread. A driver uses its own threads. */
int cuLaunchHostFunc(void *stream, void (*fn)(void *), void *data)
{
	(void)stream;
	fn(data);
	return 0;
}

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

/* The result depends on every argument. */
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **params, void **extra)
{
	if (extra != NULL || params == NULL)
		return 1;
	return *(int *)params[0] + 2 * (int)(uintptr_t)f + 3 * gx + 4 * gy + 5 * gz + 6 * bx + 7 * by + 8 * bz + 9 * shared +
	       10 * (int)(uintptr_t)stream;
}

/* The contexts of a thread. A call in a context must leave the stack as it was, so its depth is limited. */
static __thread uintptr_t contexts[4];
static __thread int depth;

int cuCtxPushCurrent_v2(void *ctx)
{
	if (ctx == NULL)
		return 201;
	if (depth == 4)
		return 999;
	contexts[depth++] = (uintptr_t)ctx;
	return 0;
}

int cuCtxPopCurrent_v2(void **ctx)
{
	if (depth == 0)
		return 201;
	depth--;
	if (ctx)
		*ctx = (void *)contexts[depth];
	return 0;
}

int cuCtxSetCurrent(void *ctx) { (void)ctx; return 0; }

int cuCtxGetCurrent(void **ctx)
{
	*ctx = depth ? (void *)contexts[depth - 1] : NULL;
	return 0;
}

/* Fails unless ctx is the current context. The id is ten times the context, plus the depth. */
int cuCtxGetId(void *ctx, uint64_t *id)
{
	if (depth == 0 || contexts[depth - 1] != (uintptr_t)ctx)
		return 201;
	*id = 10 * contexts[depth - 1] + depth;
	return 0;
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

/* Calls fn on the caller's thread. A driver uses its own threads. The result is the stream. */
int cuLaunchHostFunc(void *stream, void (*fn)(void *), void *data)
{
	fn(data);
	return (int)(uintptr_t)stream;
}

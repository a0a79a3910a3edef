/* The symbols of programs that were compiled for default streams of threads: handle 0 is the thread's default stream. */
#include "fake.h"

#define PER_THREAD(symbol, base, params, args)                                                                                 \
	CUresult base params;                                                                                                  \
	EXPORT CUresult symbol params;                                                                                         \
	EXPORT CUresult symbol params {                                                                                        \
		bool before = per_thread_default;                                                                              \
		per_thread_default = true;                                                                                     \
		CUresult r = base args;                                                                                        \
		per_thread_default = before;                                                                                   \
		return r;                                                                                                      \
	}

PER_THREAD(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync_v2, (devptr d, const void *s, size_t n, handle h), (d, s, n, h))
PER_THREAD(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync_v2, (void *d, devptr s, size_t n, handle h), (d, s, n, h))
PER_THREAD(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync_v2, (devptr d, devptr s, size_t n, handle h), (d, s, n, h))
PER_THREAD(cuMemcpyAsync_ptsz, cuMemcpyAsync, (devptr d, devptr s, size_t n, handle h), (d, s, n, h))
PER_THREAD(cuMemcpyPeerAsync_ptsz, cuMemcpyPeerAsync, (devptr d, handle dc, devptr s, handle sc, size_t n, handle h), (d, dc,
	s, sc, n, h))
PER_THREAD(cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync_v2, (const void *c, handle s), (c, s))
PER_THREAD(cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DAsync_v2, (const void *c, handle s), (c, s))
PER_THREAD(cuMemcpyBatchAsync_ptsz, cuMemcpyBatchAsync, (const devptr *d, const devptr *s, const size_t *n, size_t count,
	const void *a, const size_t *first, size_t na, size_t *failed, handle h), (d, s, n, count, a, first, na, failed, h))
#ifndef FAKECUDA_OLD
PER_THREAD(cuMemcpyBatchAsync_v2_ptsz, cuMemcpyBatchAsync_v2, (const devptr *d, const devptr *s, const size_t *n, size_t count,
	const void *a, const size_t *first, size_t na, handle h), (d, s, n, count, a, first, na, h))
#endif
PER_THREAD(cuMemsetD8Async_ptsz, cuMemsetD8Async, (devptr d, unsigned char v, size_t n, handle h), (d, v, n, h))
PER_THREAD(cuMemsetD16Async_ptsz, cuMemsetD16Async, (devptr d, unsigned short v, size_t n, handle h), (d, v, n, h))
PER_THREAD(cuMemsetD32Async_ptsz, cuMemsetD32Async, (devptr d, unsigned v, size_t n, handle h), (d, v, n, h))
PER_THREAD(cuMemsetD2D8Async_ptsz, cuMemsetD2D8Async, (devptr d, size_t p, unsigned char v, size_t n, size_t rows, handle h),
	(d, p, v, n, rows, h))
PER_THREAD(cuMemsetD2D16Async_ptsz, cuMemsetD2D16Async, (devptr d, size_t p, unsigned short v, size_t n, size_t rows,
	handle h), (d, p, v, n, rows, h))
PER_THREAD(cuMemsetD2D32Async_ptsz, cuMemsetD2D32Async, (devptr d, size_t p, unsigned v, size_t n, size_t rows, handle h), (d,
	p, v, n, rows, h))
PER_THREAD(cuStreamGetPriority_ptsz, cuStreamGetPriority, (handle h, int *out), (h, out))
PER_THREAD(cuStreamGetId_ptsz, cuStreamGetId, (handle h, uint64_t *out), (h, out))
PER_THREAD(cuStreamGetFlags_ptsz, cuStreamGetFlags, (handle h, unsigned *out), (h, out))
#ifndef FAKECUDA_OLD
PER_THREAD(cuStreamGetDevice_ptsz, cuStreamGetDevice, (handle h, int *out), (h, out))
#endif
PER_THREAD(cuStreamGetCtx_ptsz, cuStreamGetCtx, (handle h, handle *out), (h, out))
PER_THREAD(cuStreamWaitEvent_ptsz, cuStreamWaitEvent, (handle s, handle h, unsigned flags), (s, h, flags))
PER_THREAD(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture_v2, (handle h, int mode), (h, mode))
PER_THREAD(cuStreamBeginCaptureToGraph_ptsz, cuStreamBeginCaptureToGraph, (handle h, handle g, const handle *deps,
	const void *edges, size_t n, int mode), (h, g, deps, edges, n, mode))
PER_THREAD(cuStreamEndCapture_ptsz, cuStreamEndCapture, (handle h, handle *out), (h, out))
PER_THREAD(cuStreamIsCapturing_ptsz, cuStreamIsCapturing, (handle h, int *out), (h, out))
PER_THREAD(cuStreamGetCaptureInfo_v2_ptsz, cuStreamGetCaptureInfo_v2, (handle h, int *status, uint64_t *id, handle *g,
	const handle **deps, size_t *n), (h, status, id, g, deps, n))
PER_THREAD(cuStreamGetCaptureInfo_v3_ptsz, cuStreamGetCaptureInfo_v3, (handle h, int *status, uint64_t *id, handle *g,
	const handle **deps, const void **edges, size_t *n), (h, status, id, g, deps, edges, n))
PER_THREAD(cuStreamUpdateCaptureDependencies_ptsz, cuStreamUpdateCaptureDependencies, (handle h, const handle *deps, size_t n,
	unsigned flags), (h, deps, n, flags))
PER_THREAD(cuStreamUpdateCaptureDependencies_v2_ptsz, cuStreamUpdateCaptureDependencies_v2, (handle h, const handle *deps,
	const void *edges, size_t n, unsigned flags), (h, deps, edges, n, flags))
PER_THREAD(cuStreamQuery_ptsz, cuStreamQuery, (handle h), (h))
PER_THREAD(cuStreamSynchronize_ptsz, cuStreamSynchronize, (handle h), (h))
PER_THREAD(cuEventRecord_ptsz, cuEventRecord, (handle h, handle s), (h, s))
PER_THREAD(cuEventRecordWithFlags_ptsz, cuEventRecordWithFlags, (handle h, handle s, unsigned flags), (h, s, flags))
PER_THREAD(cuLaunchKernel_ptsz, cuLaunchKernel, (handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
	unsigned bz, unsigned shared, handle s, void **params, void **extra), (f, gx, gy, gz, bx, by, bz, shared, s, params, extra))
PER_THREAD(cuLaunchKernelEx_ptsz, cuLaunchKernelEx, (const void *c, handle f, void **params, void **extra), (c, f, params, extra))
PER_THREAD(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel, (handle f, unsigned gx, unsigned gy, unsigned gz,
	unsigned bx, unsigned by, unsigned bz, unsigned shared, handle s, void **params), (f, gx, gy, gz, bx, by, bz, shared, s, params))
PER_THREAD(cuLaunchHostFunc_ptsz, cuLaunchHostFunc, (handle h, void (*fn)(void *), void *data), (h, fn, data))
PER_THREAD(cuMemAllocAsync_ptsz, cuMemAllocAsync, (devptr *out, size_t bytes, handle s), (out, bytes, s))
PER_THREAD(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, (devptr *out, size_t bytes, handle h, handle s), (out, bytes,
	h, s))
PER_THREAD(cuMemFreeAsync_ptsz, cuMemFreeAsync, (devptr p, handle s), (p, s))
PER_THREAD(cuMemPrefetchAsync_ptsz, cuMemPrefetchAsync, (devptr p, size_t n, int dev, handle s), (p, n, dev, s))
PER_THREAD(cuMemPrefetchAsync_v2_ptsz, cuMemPrefetchAsync_v2, (devptr p, size_t n, struct location l, unsigned flags,
	handle s), (p, n, l, flags, s))
PER_THREAD(cuGraphLaunch_ptsz, cuGraphLaunch, (handle h, handle s), (h, s))
PER_THREAD(cuGraphUpload_ptsz, cuGraphUpload, (handle h, handle s), (h, s))
PER_THREAD(cuStreamWriteValue32_v2_ptsz, cuStreamWriteValue32_v2, (handle h, devptr p, uint32_t v, unsigned f), (h, p, v, f))
PER_THREAD(cuStreamWriteValue64_v2_ptsz, cuStreamWriteValue64_v2, (handle h, devptr p, uint64_t v, unsigned f), (h, p, v, f))
PER_THREAD(cuStreamWaitValue32_v2_ptsz, cuStreamWaitValue32_v2, (handle h, devptr p, uint32_t v, unsigned f), (h, p, v, f))
PER_THREAD(cuStreamWaitValue64_v2_ptsz, cuStreamWaitValue64_v2, (handle h, devptr p, uint64_t v, unsigned f), (h, p, v, f))
PER_THREAD(cuStreamBatchMemOp_v2_ptsz, cuStreamBatchMemOp_v2, (handle h, unsigned n, const void *ops, unsigned flags), (h, n,
	ops, flags))
PER_THREAD(cuMemcpy_ptds, cuMemcpy, (devptr d, devptr s, size_t n), (d, s, n))
PER_THREAD(cuMemcpyPeer_ptds, cuMemcpyPeer, (devptr d, handle dc, devptr s, handle sc, size_t n), (d, dc, s, sc, n))
PER_THREAD(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD_v2, (devptr d, const void *s, size_t n), (d, s, n))
PER_THREAD(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH_v2, (void *d, devptr s, size_t n), (d, s, n))
PER_THREAD(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD_v2, (devptr d, devptr s, size_t n), (d, s, n))
PER_THREAD(cuMemcpy2D_v2_ptds, cuMemcpy2D_v2, (const void *c), (c))
PER_THREAD(cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2DUnaligned_v2, (const void *c), (c))
PER_THREAD(cuMemcpy3D_v2_ptds, cuMemcpy3D_v2, (const void *c), (c))
PER_THREAD(cuMemsetD8_v2_ptds, cuMemsetD8_v2, (devptr d, unsigned char v, size_t n), (d, v, n))
PER_THREAD(cuMemsetD16_v2_ptds, cuMemsetD16_v2, (devptr d, unsigned short v, size_t n), (d, v, n))
PER_THREAD(cuMemsetD32_v2_ptds, cuMemsetD32_v2, (devptr d, unsigned v, size_t n), (d, v, n))
PER_THREAD(cuMemsetD2D8_v2_ptds, cuMemsetD2D8_v2, (devptr d, size_t p, unsigned char v, size_t n, size_t rows), (d, p, v, n,
	rows))
PER_THREAD(cuMemsetD2D16_v2_ptds, cuMemsetD2D16_v2, (devptr d, size_t p, unsigned short v, size_t n, size_t rows), (d, p, v, n,
	rows))
PER_THREAD(cuMemsetD2D32_v2_ptds, cuMemsetD2D32_v2, (devptr d, size_t p, unsigned v, size_t n, size_t rows), (d, p, v, n, rows))

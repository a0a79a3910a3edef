/* Functions of the driver that do nothing, with 0 to 11 words and a 64-byte struct by value. */
#include <stdint.h>

typedef uint64_t w;
typedef struct { char b[64]; } handle64;

int cuCtxPushCurrent_v2(w a) { return a == 0; }
int cuCtxPopCurrent_v2(w a) { return a != 0; }

int cuCtxSynchronize(void) { return 0; }
int cuEventQuery(w a) { return a != 1; }
int cuEventRecord(w a, w b) { return a + b != 3; }
int cuStreamWaitEvent(w a, w b, w c) { return a + b + c != 6; }
int cuMemcpyDtoDAsync_v2(w a, w b, w c, w d) { return a + b + c + d != 10; }
int cuMemsetD2D8_v2(w a, w b, w c, w d, w e) { return a + b + c + d + e != 15; }
int cuMemsetD2D8Async(w a, w b, w c, w d, w e, w f) { return a + b + c + d + e + f != 21; }
int cuMulticastBindMem_v2(w a, w b, w c, w d, w e, w f, w g) { return a + b + c + d + e + f + g != 28; }
int cuLinkAddData_v2(w a, w b, w c, w d, w e, w f, w g, w h) { (void)c, (void)e, (void)g, (void)h; return a + b + d + f != 13; }
int cuMemcpyBatchAsync(w a, w b, w c, w d, w e, w f, w g, w h, w i)
{
	(void)a, (void)b, (void)c, (void)e, (void)f, (void)i;
	return d + g != 11;
}
int cuLaunchCooperativeKernel(w a, w b, w c, w d, w e, w f, w g, w h, w i, w j)
{
	(void)j;
	return a + (unsigned)b + (unsigned)c + (unsigned)d + (unsigned)e + (unsigned)f + (unsigned)g + (unsigned)h + i != 45;
}
int cuLaunchKernel(w a, w b, w c, w d, w e, w f, w g, w h, w i, w j, w k)
{
	(void)j, (void)k;
	return a + (unsigned)b + (unsigned)c + (unsigned)d + (unsigned)e + (unsigned)f + (unsigned)g + (unsigned)h + i != 45;
}
int cuIpcOpenMemHandle_v2(w a, handle64 h, unsigned flags) { return a == 0 || h.b[0] != 5 || flags != 1; }

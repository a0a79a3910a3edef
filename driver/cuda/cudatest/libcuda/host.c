/* Pinned host memory. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <sys/mman.h>

static CUresult host_range(void *p, size_t bytes, unsigned flags, bool registered) {
	struct ctx *c = current_or_null();
	for (struct range *r = range_first(); r; r = r->next)
		if (r->kind == K_HOST && (devptr)p < r->base + r->size && r->base < (devptr)p + bytes)
			return HOST_MEMORY_ALREADY_REGISTERED;
	struct range *r = zalloc(sizeof *r);
	*r = (struct range){.base = (devptr)p, .size = bytes, .kind = K_HOST, .ctx = c, .dev = c->dev, .flags = flags | (registered ? 1u << 31 : 0)};
	range_insert(r);
	live_add(LIVE_HOST, 1);
	return OK;
}

static CUresult host_alloc(void **out, size_t bytes, unsigned flags) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	if (!out || !bytes || flags & ~7u)
		return INVALID_VALUE;
	if (prohibited())
		return STREAM_CAPTURE_UNSUPPORTED;
	if (bytes > SIZE_MAX / 2)
		return OUT_OF_MEMORY;
	void *p = mmap(NULL, round_up(bytes, 4096), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return OUT_OF_MEMORY;
	*out = p;
	return host_range(p, bytes, flags, false);
}
API(cuMemHostAlloc, (void **out, size_t bytes, unsigned flags), host_alloc(out, bytes, flags))
API(cuMemAllocHost_v2, (void **out, size_t bytes), host_alloc(out, bytes, 0))

/* mapped reports whether all of the addresses are mapped, and writable if that is required. */
static bool mapped(devptr begin, devptr end, bool writable) {
	FILE *f = fopen("/proc/self/maps", "re");
	char line[8192];
	unsigned long long from, to;
	char mode[5];
	if (!f)
		return true;
	while (begin < end && fgets(line, sizeof line, f))
		if (sscanf(line, "%llx-%llx %4s", &from, &to, mode) == 3 && from <= begin && begin < to) {
			if (mode[0] != 'r' || (writable && mode[1] != 'w'))
				break;
			begin = to;
		}
	fclose(f);
	return begin >= end;
}

static CUresult host_register(void *p, size_t bytes, unsigned flags) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	if (!p || !bytes || flags & ~15u || (devptr)p + bytes < (devptr)p)
		return INVALID_VALUE;
	if (flags & 8 && lacks("rohost"))
		return NOT_SUPPORTED;
	/* Pages are pinned for writing unless the read-only flag is set. */
	if (!mapped((devptr)p, (devptr)p + bytes, !(flags & 8)))
		return INVALID_VALUE;
	return host_range(p, bytes, flags, true);
}
API(cuMemHostRegister_v2, (void *p, size_t bytes, unsigned flags), host_register(p, bytes, flags))

static struct range *host_at(void *p, bool registered) {
	struct range *r = range_at((devptr)p);
	return r && r->kind == K_HOST && r->base == (devptr)p && !!(r->flags & 1u << 31) == registered ? r : NULL;
}

static CUresult host_release(void *p, bool registered) {
	struct range *r = host_at(p, registered);
	if (!r)
		return registered ? HOST_MEMORY_NOT_REGISTERED : INVALID_VALUE;
	if (prohibited())
		return STREAM_CAPTURE_UNSUPPORTED;
	range_free(r);
	return OK;
}
API_RELEASE(cuMemFreeHost, (void *p), host_release(p, false))
API_RELEASE(cuMemHostUnregister, (void *p), host_release(p, true))

static CUresult host_pointer(devptr *out, void *p) {
	struct range *r = range_at((devptr)p);
	if (!out || !r || r->kind != K_HOST)
		return INVALID_VALUE;
	*out = (devptr)p;
	return OK;
}
API(cuMemHostGetDevicePointer_v2, (devptr *out, void *p, unsigned flags), flags ? INVALID_VALUE : host_pointer(out, p))

static CUresult host_flags(unsigned *flags, void *p) {
	struct range *r = range_at((devptr)p);
	if (!flags || !r || r->kind != K_HOST)
		return INVALID_VALUE;
	*flags = r->flags & 15;
	return OK;
}
API(cuMemHostGetFlags, (unsigned *flags, void *p), host_flags(flags, p))

/* Memory: what is behind an address, cuMemAlloc and friends, pinned host memory, and what may be asked of a pointer. */
#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct range *ranges;
static uint64_t range_ids;

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* scribble fills memory, so that code that counts on zeroes, or on memory that was given back, fails. Only the ends of large memory:
 * its pages are not touched otherwise. */
static void scribble(void *p, size_t n, int value) {
	size_t edge = 1 << 20;
	if (n <= 64 * edge) {
		memset(p, value, n);
		return;
	}
	memset(p, value, edge);
	memset((char *)p + n - edge, value, edge);
}

/* phys_adopt takes fd, the memory of another process or handle. */
struct phys *phys_adopt(int fd, int dev, size_t size) {
	void *alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (alias == MAP_FAILED) {
		close(fd);
		return NULL;
	}
	struct phys *p = zalloc(sizeof *p);
	*p = (struct phys){.refs = 1, .fd = fd, .dev = dev, .size = size, .alias = alias};
	return p;
}

/* phys_new makes memory on a device. The name of the memfd says what an importer needs to know, and the kernel keeps it. */
struct phys *phys_new(int dev, size_t size, unsigned types, CUresult *r) {
	struct device *d = &devices[dev];
	if (size > d->total || d->used > d->total - size)
		return *r = OUT_OF_MEMORY, NULL;
	char name[160], *w = name + snprintf(name, sizeof name, "fakecuda:%016llx:", (unsigned long long)random64());
	for (int i = 0; i < 16; i++)
		w += sprintf(w, "%02x", d->uuid[i]);
	sprintf(w, ":%llx:%x", (unsigned long long)size, types);
	int fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)size)) {
		if (fd >= 0)
			close(fd);
		return *r = OUT_OF_MEMORY, NULL;
	}
	struct phys *p = phys_adopt(fd, dev, size);
	if (!p)
		return *r = OUT_OF_MEMORY, NULL;
	p->nonce = strtoull(name + 9, NULL, 16);
	p->types = types;
	p->counted = true;
	d->used += size;
	scribble(p->alias, size, 0xa5);
	return p;
}

void phys_drop(struct phys *p) {
	if (!p || --p->refs)
		return;
	/* Free before an importer closed is undefined; here the importer reads rubbish from then on. */
	if (p->exported)
		scribble(p->alias, p->size, 0xdb);
	munmap(p->alias, p->size);
	close(p->fd);
	if (p->counted)
		devices[p->dev].used -= p->size;
	free(p);
}

/* reserve_va takes addresses that nobody can access. */
devptr reserve_va(size_t size, size_t align) {
	if (align < 4096)
		align = 4096;
	if (size > SIZE_MAX - align - 4096)
		return 0;
	size_t want = round_up(size, 4096) + align;
	char *p = mmap(NULL, want, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return 0;
	char *a = (char *)round_up((size_t)p, align), *end = a + round_up(size, 4096);
	if (a > p)
		munmap(p, (size_t)(a - p));
	if (p + want > end)
		munmap(end, (size_t)(p + want - end));
	return (devptr)a;
}

void unreserve_va(devptr p, size_t size) { munmap((void *)p, round_up(size, 4096)); }

void range_insert(struct range *r) {
	r->id = ++range_ids;
	r->next = ranges;
	ranges = r;
}

/* range_new takes p and puts it behind fresh addresses. */
struct range *range_new(enum kind k, struct phys *p, size_t size, struct ctx *c, int dev) {
	devptr base = reserve_va(size, k == K_VMM ? GRANULARITY : 512);
	if (!base)
		return NULL;
	struct range *r = zalloc(sizeof *r);
	*r = (struct range){.base = base, .size = size, .kind = k, .p = p, .ctx = c, .dev = dev, .opens = 1};
	r->access[dev] = 3;
	range_insert(r);
	live_add(k == K_IPC ? LIVE_IPC : LIVE_ALLOCATIONS, 1);
	return r;
}

void range_free(struct range *r) {
	for (struct range **p = &ranges; *p; p = &(*p)->next)
		if (*p == r) {
			*p = r->next;
			break;
		}
	if (r->kind != K_VMM && r->kind != K_HOST)
		unreserve_va(r->base, r->size);
	if (r->kind == K_HOST && !(r->flags & 1u << 31))
		munmap((void *)r->base, round_up(r->size, 4096));
	live_add(r->kind == K_IPC ? LIVE_IPC : r->kind == K_VMM ? LIVE_MAPPINGS : r->kind == K_HOST ? LIVE_HOST : LIVE_ALLOCATIONS, -1);
	phys_drop(r->p);
	free(r);
}

struct range *range_first(void) { return ranges; }

struct range *range_at(devptr p) {
	for (struct range *r = ranges; r; r = r->next)
		if (p >= r->base && p - r->base < r->size)
			return r;
	return NULL;
}

uint8_t *bytes_of(struct range *r, devptr p) {
	return r->kind == K_HOST ? (uint8_t *)p : (uint8_t *)r->p->alias + r->off + (p - r->base);
}

/* capture_forbids: while a thread captures in a mode other than relaxed, calls that may wait for the device are refused. */
bool capture_forbids(void) { return captures_active() > 0; }

CUresult alloc_range(enum kind k, size_t bytes, struct ctx *c, devptr *out) {
	CUresult r = OK;
	if (bytes > SIZE_MAX / 2)
		return OUT_OF_MEMORY;
	struct phys *p = phys_new(c->dev, round_up(bytes, GRANULARITY), 0, &r);
	if (!p)
		return r;
	struct range *g = range_new(k, p, bytes, c, c->dev);
	if (!g) {
		phys_drop(p);
		return OUT_OF_MEMORY;
	}
	if (k == K_MANAGED && mmap((void *)g->base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, p->fd, 0) == MAP_FAILED) {
		range_free(g);
		return OUT_OF_MEMORY;
	}
	*out = g->base;
	return OK;
}

static CUresult alloc(devptr *out, size_t bytes, enum kind k) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	if (!out || bytes == 0)
		return INVALID_VALUE;
	if (capture_forbids())
		return STREAM_CAPTURE_UNSUPPORTED;
	return alloc_range(k, bytes, c, out);
}
API(cuMemAlloc_v2, (devptr *out, size_t bytes), alloc(out, bytes, K_ALLOC))

static CUresult managed(devptr *out, size_t bytes, unsigned flags) {
	return flags == 1 || flags == 2 ? alloc(out, bytes, K_MANAGED) : INVALID_VALUE;
}
API(cuMemAllocManaged, (devptr *out, size_t bytes, unsigned flags), managed(out, bytes, flags))

static CUresult pitch(devptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
	if (!pitch || (element != 4 && element != 8 && element != 16) || !width || !height || width > SIZE_MAX / 2 / height)
		return INVALID_VALUE;
	*pitch = round_up(width, 512);
	return alloc(out, *pitch * height, K_ALLOC);
}
API(cuMemAllocPitch_v2, (devptr *out, size_t *p, size_t w, size_t h, unsigned e), pitch(out, p, w, h, e))

static CUresult release(devptr p) {
	struct ctx *c;
	if (!p)
		return OK;
	CUresult e = current(&c);
	if (e == INVALID_CONTEXT || e == CONTEXT_IS_DESTROYED)
		return e;
	if (capture_forbids())
		return STREAM_CAPTURE_UNSUPPORTED;
	struct range *r = range_at(p);
	if (!r || r->base != p || (r->kind != K_ALLOC && r->kind != K_POOL && r->kind != K_MANAGED))
		return INVALID_VALUE;
	drain_ctx(r->ctx, false); /* it waits for the device */
	range_free(r);
	return OK;
}
API_RELEASE(cuMemFree_v2, (devptr p), release(p))

static CUresult info(size_t *freebytes, size_t *total) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	if (!freebytes || !total)
		return INVALID_VALUE;
	*total = devices[c->dev].total;
	*freebytes = devices[c->dev].total - devices[c->dev].used;
	return OK;
}
API(cuMemGetInfo_v2, (size_t *f, size_t *t), info(f, t))

static CUresult address_range(devptr *base, size_t *size, devptr p) {
	struct ctx *c;
	CUresult e = current(&c);
	if (e)
		return e;
	struct range *r = range_at(p);
	if (!r || r->kind == K_HOST)
		return NOT_FOUND;
	if (base)
		*base = r->base;
	if (size)
		*size = r->size;
	return OK;
}
API(cuMemGetAddressRange_v2, (devptr *base, size_t *size, devptr p), address_range(base, size, p))

static CUresult host_range(void *p, size_t bytes, unsigned flags, bool registered) {
	struct ctx *c = current_or_null();
	for (struct range *r = ranges; r; r = r->next)
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
	if (capture_forbids())
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

static CUresult host_register(void *p, size_t bytes, unsigned flags) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	if (!p || !bytes || flags & ~15u || (devptr)p + bytes < (devptr)p)
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
	drain_ctx(r->ctx, false);
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

static CUresult pointer_attribute(void *data, int attr, devptr p) {
	struct range *r = range_at(p);
	if (!data)
		return INVALID_VALUE;
	if (!r)
		return INVALID_VALUE;
	switch (attr) {
	case 1: *(handle *)data = r->ctx ? r->ctx->self : 0; return OK;
	case 2: *(unsigned *)data = r->kind == K_HOST ? 1 : 2; return OK;
	case 3: *(devptr *)data = p; return OK;
	case 4: *(uint64_t *)data = p; return r->kind == K_HOST || r->kind == K_MANAGED ? OK : INVALID_VALUE;
	case 6: return OK;
	case 7: *(uint64_t *)data = r->id; return OK;
	case 8: *(uint8_t *)data = r->kind == K_MANAGED; return OK;
	case 9: *(int *)data = r->dev; return OK;
	case 10: *(uint8_t *)data = r->kind == K_ALLOC && !lacks("ipc"); return OK;
	case 11: *(devptr *)data = r->base; return OK;
	case 12: *(size_t *)data = r->size; return OK;
	case 13: *(uint8_t *)data = 1; return OK;
	case 14: *(uint64_t *)data = r->kind == K_VMM && r->p ? r->p->types : 0; return OK;
	case 16: *(unsigned *)data = r->access[r->dev]; return OK;
	case 17: *(handle *)data = r->pool; return OK;
	}
	return INVALID_VALUE;
}
API(cuPointerGetAttribute, (void *data, int attr, devptr p), pointer_attribute(data, attr, p))

static CUresult pointer_attributes(unsigned n, int *attrs, void **data, devptr p) {
	if (!attrs || !data)
		return INVALID_VALUE;
	for (unsigned i = 0; i < n; i++) {
		CUresult r = pointer_attribute(data[i], attrs[i], p);
		if (r && range_at(p))
			return r;
	}
	return OK;
}
API(cuPointerGetAttributes, (unsigned n, int *attrs, void **data, devptr p), pointer_attributes(n, attrs, data, p))

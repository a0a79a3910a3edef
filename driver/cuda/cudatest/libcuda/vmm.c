/* Virtual memory: handles, reservations, mappings, access, and handles of other processes. */
#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct reservation { struct reservation *next; devptr base; size_t size; };

static struct reservation *reservations;
static const char fabric_magic[8] = "FKFABRC";

static bool aligned(uint64_t v) { return v % GRANULARITY == 0; }

/* unit is larger for memory with fabric handles, to detect code that queries the granularity without the handle type. */
static size_t unit(unsigned types) { return types & 8 ? 2 * GRANULARITY : GRANULARITY; }

/* fabric returns the error of using fabric handles. A device with the attribute but without an IMEX channel is "not permitted". */
static CUresult fabric(unsigned types) {
	if (!(types & 8) || env_is("FAKECUDA_FABRIC", "1"))
		return OK;
	return env_is("FAKECUDA_FABRIC", "noimex") ? NOT_PERMITTED : NOT_SUPPORTED;
}

static CUresult check_prop(const struct alloc_prop *p) {
	if (lacks("vmm"))
		return NOT_SUPPORTED;
	if (!p || p->type != 1 || p->loc.type != 1 || p->types & ~9u || p->win32)
		return INVALID_VALUE;
	return p->loc.id < 0 || p->loc.id >= device_count ? INVALID_DEVICE : OK;
}

static CUresult granularity(size_t *out, const struct alloc_prop *p, int option) {
	CUresult r = check_prop(p);
	if (r)
		return r;
	return out && (option == 0 || option == 1) ? (*out = unit(p->types), OK) : INVALID_VALUE;
}
API(cuMemGetAllocationGranularity, (size_t *out, const struct alloc_prop *p, int option), granularity(out, p, option))

handle vmm_add(struct phys *p, const struct alloc_prop *prop) {
	struct vmm *v = zalloc(sizeof *v);
	*v = (struct vmm){.p = p, .refs = 1, .prop = *prop};
	live_add(LIVE_HANDLES, 1);
	return v->self = obj_add(v, T_VMM);
}

static CUresult create(handle *out, size_t size, const struct alloc_prop *p, uint64_t flags) {
	CUresult r = check_prop(p);
	if (r)
		return r;
	if (!out || flags || size == 0 || size % unit(p->types))
		return INVALID_VALUE;
	if (p->types & 1 && lacks("fd"))
		return NOT_SUPPORTED;
	if ((r = fabric(p->types)))
		return r;
	struct phys *m = phys_new(p->loc.id, size, p->types, &r);
	if (!m)
		return r;
	*out = vmm_add(m, p);
	return OK;
}
API(cuMemCreate, (handle *out, size_t size, const struct alloc_prop *p, uint64_t flags), create(out, size, p, flags))

static CUresult release(handle h) {
	struct vmm *v = obj_get(h, T_VMM);
	if (!v)
		return INVALID_VALUE;
	live_add(LIVE_HANDLES, -1);
	if (--v->refs == 0) {
		obj_del(h);
		phys_drop(v->p);
		free(v);
	}
	return OK;
}
API_RELEASE(cuMemRelease, (handle h), release(h))

static CUresult reserve(devptr *out, size_t size, size_t align, devptr addr, uint64_t flags) {
	(void)addr; /* only a preference */
	if (lacks("vmm"))
		return NOT_SUPPORTED;
	if (!out || flags || size == 0 || !aligned(size) || align & (align - 1))
		return INVALID_VALUE;
	devptr p = reserve_va(size, align > GRANULARITY ? align : GRANULARITY);
	if (!p)
		return OUT_OF_MEMORY;
	struct reservation *r = zalloc(sizeof *r);
	*r = (struct reservation){reservations, p, size};
	reservations = r;
	live_add(LIVE_RESERVATIONS, 1);
	*out = p;
	return OK;
}
API(cuMemAddressReserve, (devptr *out, size_t size, size_t align, devptr addr, uint64_t flags), reserve(out, size, align, addr, flags))

/* mapped_in reports whether there is a mapping in [p, p+size). */
static bool mapped_in(devptr p, size_t size) {
	for (struct range *r = range_first(); r; r = r->next)
		if (r->kind == K_VMM && r->base < p + size && p < r->base + r->size)
			return true;
	return false;
}

static CUresult unreserve(devptr p, size_t size) {
	for (struct reservation **at = &reservations; *at; at = &(*at)->next) {
		struct reservation *r = *at;
		if (r->base != p || r->size != size)
			continue;
		if (mapped_in(p, size))
			return INVALID_VALUE;
		*at = r->next;
		unreserve_va(p, size);
		free(r);
		live_add(LIVE_RESERVATIONS, -1);
		return OK;
	}
	return INVALID_VALUE;
}
API_RELEASE(cuMemAddressFree, (devptr p, size_t size), unreserve(p, size))

static CUresult map(devptr p, size_t size, size_t off, handle h, uint64_t flags) {
	struct vmm *v = obj_get(h, T_VMM);
	struct reservation *r = reservations;
	if (!v || flags || size == 0 || !aligned(p) || size % unit(v->p->types) || off)
		return INVALID_VALUE;
	if (size > v->p->size)
		return INVALID_VALUE;
	while (r && !(p >= r->base && size <= r->size && p - r->base <= r->size - size))
		r = r->next;
	if (!r || mapped_in(p, size))
		return INVALID_VALUE;
	struct range *g = zalloc(sizeof *g);
	*g = (struct range){.base = p, .size = size, .kind = K_VMM, .p = v->p, .dev = v->p->dev};
	v->p->refs++;
	range_insert(g);
	live_add(LIVE_MAPPINGS, 1);
	return OK;
}
API(cuMemMap, (devptr p, size_t size, size_t off, handle h, uint64_t flags), map(p, size, off, h, flags))

/* covered reports whether [p, p+size) consists of whole mappings. */
static bool covered(devptr p, size_t size) {
	while (size) {
		struct range *r = range_at(p);
		if (!r || r->kind != K_VMM || r->base != p || r->size > size)
			return false;
		p += r->size;
		size -= r->size;
	}
	return true;
}

static CUresult unmap(devptr p, size_t size) {
	if (size == 0 || !covered(p, size))
		return INVALID_VALUE;
	if (prohibited())
		return STREAM_CAPTURE_UNSUPPORTED;
	for (devptr end = p + size; p < end;) {
		struct range *r = range_at(p);
		p += r->size;
		range_free(r);
	}
	return OK;
}
API_RELEASE(cuMemUnmap, (devptr p, size_t size), unmap(p, size))

static CUresult set_access(devptr p, size_t size, const struct access_desc *d, size_t n) {
	if (!d || n == 0 || size == 0 || !covered(p, size))
		return INVALID_VALUE;
	for (size_t i = 0; i < n; i++) {
		if (d[i].loc.type != 1 || (d[i].flags != 0 && d[i].flags != 1 && d[i].flags != 3))
			return INVALID_VALUE;
		if (d[i].loc.id < 0 || d[i].loc.id >= device_count)
			return INVALID_DEVICE;
	}
	for (devptr q = p; q < p + size;) {
		struct range *r = range_at(q);
		for (size_t i = 0; i < n; i++) {
			if (d[i].loc.id != r->dev && lacks("p2p"))
				return PEER_ACCESS_UNSUPPORTED;
			r->access[d[i].loc.id] = d[i].flags;
		}
		q += r->size;
	}
	return OK;
}
API(cuMemSetAccess, (devptr p, size_t size, const struct access_desc *d, size_t n), set_access(p, size, d, n))

static CUresult get_access(uint64_t *out, const struct location *loc, devptr p) {
	struct range *r = range_at(p);
	if (!out || !loc || loc->type != 1 || loc->id < 0 || loc->id >= device_count || !r || r->kind != K_VMM)
		return INVALID_VALUE;
	*out = r->access[loc->id];
	return OK;
}
API(cuMemGetAccess, (uint64_t *out, const struct location *loc, devptr p), get_access(out, loc, p))

static CUresult retain(handle *out, void *addr) {
	struct range *r = range_at((devptr)addr);
	if (!out || !r || r->kind != K_VMM)
		return INVALID_VALUE;
	struct alloc_prop prop = {.type = 1, .types = r->p->types, .loc = {1, r->dev}};
	r->p->refs++;
	*out = vmm_add(r->p, &prop);
	return OK;
}
API(cuMemRetainAllocationHandle, (handle *out, void *addr), retain(out, addr))

static CUresult properties(struct alloc_prop *out, handle h) {
	struct vmm *v = obj_get(h, T_VMM);
	return out && v ? (*out = v->prop, OK) : INVALID_VALUE;
}
API(cuMemGetAllocationPropertiesFromHandle, (struct alloc_prop *out, handle h), properties(out, h))

static CUresult export(void *out, handle h, unsigned type, uint64_t flags) {
	struct vmm *v = obj_get(h, T_VMM);
	if (!out || !v || flags || (type != 1 && type != 8) || !(v->p->types & type) || v->p->imported)
		return INVALID_VALUE;
	if (v->p->mc) /* this library has no multicast between processes */
		return NOT_SUPPORTED;
	if (type == 1) {
		int fd = dup(v->p->fd); /* not close-on-exec; the caller must set it */
		if (fd < 0)
			return OPERATING_SYSTEM;
		*(int *)out = fd;
		return OK;
	}
	record_fill(out, fabric_magic, v->p->fd, v->p->nonce, v->p->size, devices[v->p->dev].uuid);
	return OK;
}
API(cuMemExportToShareableHandle, (void *out, handle h, unsigned type, uint64_t flags), export(out, h, type, flags))

/* adopt takes ownership of fd and reads its properties from the kernel: its name and its size. */
static CUresult adopt(handle *out, int fd) {
	char link[64], name[256], uuid_hex[33];
	unsigned long long nonce, size;
	unsigned types;
	uint8_t uuid[16];
	struct stat st;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, name, sizeof name - 1);
	CUresult r = UNKNOWN;
	if (n > 0)
		name[n] = 0;
	if (n <= 0 || fstat(fd, &st) ||
	    sscanf(name, "/memfd:fakecuda:%16llx:%32[0-9a-f]:%llx:%x", &nonce, uuid_hex, &size, &types) != 4 || (uint64_t)st.st_size != size)
		goto out;
	for (int i = 0; i < 16; i++) {
		unsigned b;
		sscanf(uuid_hex + 2 * i, "%2x", &b);
		uuid[i] = (uint8_t)b;
	}
	int dev = device_by_uuid(uuid);
	r = INVALID_DEVICE;
	if (dev < 0)
		goto out;
	struct phys *p = phys_adopt(fd, dev, size);
	if (!p)
		return OUT_OF_MEMORY;
	p->nonce = nonce;
	p->types = types;
	p->imported = true;
	*out = vmm_add(p, &(struct alloc_prop){.type = 1, .types = types, .loc = {1, dev}});
	return OK;
out:
	close(fd);
	return r;
}

static CUresult import(handle *out, void *os, unsigned type) {
	int fd;
	if (!out || lacks("vmm"))
		return out ? NOT_SUPPORTED : INVALID_VALUE;
	if (type == 1) {
		fd = lacks("fd") ? -1 : fcntl((int)(intptr_t)os, F_DUPFD_CLOEXEC, 0); /* the caller keeps its descriptor */
		return fd < 0 ? INVALID_VALUE : adopt(out, fd);
	}
	if (type != 8 || !os)
		return INVALID_VALUE;
	CUresult r = fabric(type);
	if (!r)
		r = record_open(os, fabric_magic, &fd);
	return r ? r : adopt(out, fd);
}
API(cuMemImportFromShareableHandle, (handle *out, void *os, unsigned type), import(out, os, type))

/* Stream-ordered memory. Allocation is immediate; memory is freed when the stream executes the free. */
#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct pool { int dev; uint64_t threshold, high; unsigned types; bool is_default, imported, on_host; int fd; uint64_t nonce; unsigned access[MAX_DEVICES]; };
struct pool_props { int32_t type; uint32_t types; struct location loc; void *win32; size_t max; uint8_t rest[56]; };
static const char pointer_magic[8] = "FKPOOLP";

static handle pool_new(int dev, unsigned types, bool is_default) {
	struct pool *p = zalloc(sizeof *p);
	*p = (struct pool){.dev = dev, .types = types, .is_default = is_default, .fd = -1};
	p->access[dev] = 3;
	if (!is_default)
		live_add(LIVE_POOLS, 1);
	return obj_add(p, T_POOL);
}

/* share makes the descriptor of a pool that can be shared. Its name contains what importers need. */
static bool share(struct pool *p) {
	char name[128], *w = name;
	p->nonce = random64();
	w += sprintf(name, "fakecuda-pool:%016llx:", (unsigned long long)p->nonce);
	for (int i = 0; i < 16; i++)
		w += sprintf(w, "%02x", devices[p->dev].uuid[i]);
	p->fd = memfd_create(name, MFD_CLOEXEC);
	return p->fd >= 0;
}

static CUresult device_pool(handle *out, int dev, bool is_default) {
	if (dev < 0 || dev >= device_count)
		return INVALID_DEVICE;
	if (!out)
		return INVALID_VALUE;
	if (lacks("pool"))
		return NOT_SUPPORTED;
	struct device *d = &devices[dev];
	if (!d->default_pool)
		d->default_pool = d->current_pool = pool_new(dev, 0, true);
	*out = is_default ? d->default_pool : d->current_pool;
	return OK;
}
API(cuDeviceGetDefaultMemPool, (handle *out, int dev), device_pool(out, dev, true))
API(cuDeviceGetMemPool, (handle *out, int dev), device_pool(out, dev, false))

static CUresult set_pool(int dev, handle h) {
	handle ignored;
	CUresult r = device_pool(&ignored, dev, true);
	struct pool *p = obj_get(h, T_POOL);
	if (r)
		return r;
	if (!p || p->imported || p->dev != dev)
		return INVALID_VALUE;
	devices[dev].current_pool = h;
	return OK;
}
API(cuDeviceSetMemPool, (int dev, handle h), set_pool(dev, h))

static CUresult create(handle *out, const struct pool_props *p) {
	if (lacks("pool"))
		return NOT_SUPPORTED;
	if (!out || !p || (p->type != 1 && p->type != 2) || p->loc.type < 1 - (p->type == 2) || p->loc.type > 4 || p->types & ~9u)
		return INVALID_VALUE;
	if (p->loc.type == 1 && (p->loc.id < 0 || p->loc.id >= device_count))
		return INVALID_DEVICE;
	/* Pinned memory of the host, and managed memory, are bytes that the host can access. Only device memory is shared here. */
	bool on_host = p->type == 2 || p->loc.type > 1;
	if (p->types & 8 || (on_host && p->types) || (p->type == 2 && lacks("managed")))
		return NOT_SUPPORTED;
	*out = pool_new(p->loc.type == 1 ? p->loc.id : 0, p->types, false);
	((struct pool *)obj_get(*out, T_POOL))->on_host = on_host;
	return p->types & 1 && !share(obj_get(*out, T_POOL)) ? OUT_OF_MEMORY : OK;
}
API(cuMemPoolCreate, (handle *out, const struct pool_props *p), create(out, p))

static uint64_t used(handle h) {
	uint64_t n = 0;
	for (struct range *r = range_first(); r; r = r->next)
		if (r->kind == K_POOL && r->pool == h)
			n += r->size;
	return n;
}

static CUresult destroy(handle h) {
	struct pool *p = obj_get(h, T_POOL);
	if (!p || p->is_default)
		return INVALID_VALUE;
	if (used(h)) /* the driver waits for the last allocation; here it is an error, because the program has a leak */
		return INVALID_VALUE;
	if (devices[p->dev].current_pool == h)
		devices[p->dev].current_pool = devices[p->dev].default_pool;
	obj_del(h);
	live_add(LIVE_POOLS, -1);
	if (p->fd >= 0)
		close(p->fd);
	free(p);
	return OK;
}
API_RELEASE(cuMemPoolDestroy, (handle h), destroy(h))

static CUresult attribute(handle h, int attr, uint64_t *v, bool set) {
	struct pool *p = obj_get(h, T_POOL);
	if (!p || !v)
		return INVALID_VALUE;
	uint64_t now = used(h);
	if (p->high < now)
		p->high = now;
	if (set) {
		if (attr == 4)
			p->threshold = *v;
		else if ((attr == 6 || attr == 8) && *v == 0)
			p->high = now;
		else if (attr > 3)
			return INVALID_VALUE;
		return OK;
	}
	switch (attr) {
	case 1: case 2: case 3: *(int *)v = 1; return OK;
	case 4: *v = p->threshold; return OK;
	case 5: case 7: *v = now; return OK;
	case 6: case 8: *v = p->high; return OK;
	}
	return INVALID_VALUE;
}
API(cuMemPoolGetAttribute, (handle h, int attr, void *v), attribute(h, attr, v, false))
API(cuMemPoolSetAttribute, (handle h, int attr, void *v), attribute(h, attr, v, true))
API(cuMemPoolTrimTo, (handle h, size_t keep), ((void)keep, obj_get(h, T_POOL) ? OK : INVALID_VALUE))

static CUresult alloc(devptr *out, size_t bytes, handle h, handle sh) {
	struct ctx *c;
	struct stream *s;
	CUresult r = current(&c);
	if (r || (r = stream_of(sh, &s)))
		return r;
	if (!h && (r = device_pool(&h, c->dev, false)))
		return r;
	struct pool *p = obj_get(h, T_POOL);
	if (!out || !bytes || !p || p->imported || (p->dev != c->dev && !p->on_host)) /* an imported pool allocates nothing */
		return INVALID_VALUE;
	if (s->capture)
		return NOT_SUPPORTED;
	if ((r = alloc_range(K_POOL, bytes, c, out)))
		return r;
	struct range *g = range_at(*out);
	g->pool = h;
	g->on_host = p->on_host;
	if (p->on_host && mmap((void *)g->base, round_up(bytes, 4096), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, g->p->fd, 0) == MAP_FAILED) {
		range_free(g);
		return OUT_OF_MEMORY;
	}
	uint64_t n = used(h);
	if (p->high < n)
		p->high = n;
	return OK;
}
API(cuMemAllocAsync, (devptr *out, size_t bytes, handle s), alloc(out, bytes, 0, s))
API(cuMemAllocFromPoolAsync, (devptr *out, size_t bytes, handle h, handle s), h ? alloc(out, bytes, h, s) : INVALID_VALUE)

static CUresult release(devptr p, handle sh) {
	struct stream *s;
	CUresult e = stream_of(sh, &s);
	if (e)
		return e;
	struct range *r = range_at(p);
	if (!r || r->base != p || (r->kind != K_POOL && r->kind != K_ALLOC) || r->flags)
		return INVALID_VALUE;
	struct op *o = op_new(OP_FREE, s->ctx);
	o->dst = p;
	if ((e = submit(s, o)) == OK)
		r->flags = 1; /* refuses a second free while the first is queued */
	return e;
}
API_RELEASE(cuMemFreeAsync, (devptr p, handle s), release(p, s))

/* Access of other devices to memory of a pool. The device of the pool always has access. */
static CUresult set_access(handle h, const struct access_desc *d, size_t n) {
	struct pool *p = obj_get(h, T_POOL);
	if (!p || !d || !n)
		return INVALID_VALUE;
	for (size_t i = 0; i < n; i++) {
		if (d[i].loc.type < 1 || d[i].loc.type > 4 || (d[i].flags != 0 && d[i].flags != 3))
			return INVALID_VALUE;
		if (d[i].loc.type != 1 && p->on_host)
			continue;
		if (d[i].loc.type != 1)
			return INVALID_VALUE;
		if (d[i].loc.id < 0 || d[i].loc.id >= device_count)
			return INVALID_DEVICE;
		if (d[i].loc.id == p->dev && d[i].flags != 3)
			return INVALID_VALUE;
		if (d[i].loc.id != p->dev && lacks("p2p"))
			return PEER_ACCESS_UNSUPPORTED;
	}
	for (size_t i = 0; i < n; i++)
		if (d[i].loc.type == 1)
			p->access[d[i].loc.id] = d[i].flags;
	return OK;
}
API(cuMemPoolSetAccess, (handle h, const struct access_desc *d, size_t n), set_access(h, d, n))

static CUresult get_access(unsigned *out, handle h, const struct location *l) {
	struct pool *p = obj_get(h, T_POOL);
	if (!out || !p || !l || l->type != 1 || l->id < 0 || l->id >= device_count)
		return INVALID_VALUE;
	*out = p->access[l->id];
	return OK;
}
API(cuMemPoolGetAccess, (unsigned *out, handle h, const struct location *l), get_access(out, h, l))

bool pool_allows(handle h, int dev, bool write) {
	struct pool *p = obj_get(h, T_POOL);
	return p && p->access[dev] & (write ? 2u : 1u);
}

static CUresult export(int *out, handle h, unsigned type, uint64_t flags) {
	struct pool *p = obj_get(h, T_POOL);
	if (!out || !p || flags || type != 1 || p->fd < 0 || p->imported)
		return INVALID_VALUE;
	int fd = dup(p->fd); /* not close-on-exec; the caller must set it */
	return fd < 0 ? OPERATING_SYSTEM : (*out = fd, OK);
}
API(cuMemPoolExportToShareableHandle, (int *out, handle h, unsigned type, uint64_t flags), export(out, h, type, flags))

static CUresult import(handle *out, void *os, unsigned type, uint64_t flags) {
	char link[64], name[256], hex[33];
	unsigned long long nonce;
	uint8_t uuid[16];
	if (lacks("pool"))
		return NOT_SUPPORTED;
	if (!out || flags || type != 1)
		return INVALID_VALUE;
	int fd = fcntl((int)(intptr_t)os, F_DUPFD_CLOEXEC, 0); /* the caller keeps its descriptor */
	if (fd < 0)
		return INVALID_VALUE;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, name, sizeof name - 1);
	if (n > 0)
		name[n] = 0;
	if (n <= 0 || sscanf(name, "/memfd:fakecuda-pool:%16llx:%32[0-9a-f]", &nonce, hex) != 2) {
		close(fd);
		return INVALID_VALUE;
	}
	for (int i = 0; i < 16; i++) {
		unsigned b = 0;
		sscanf(hex + 2 * i, "%2x", &b);
		uuid[i] = (uint8_t)b;
	}
	int dev = device_by_uuid(uuid);
	if (dev < 0) {
		close(fd);
		return INVALID_DEVICE;
	}
	*out = pool_new(dev, 1, false);
	struct pool *p = obj_get(*out, T_POOL);
	p->imported = true;
	p->fd = fd;
	p->nonce = nonce;
	return OK;
}
API(cuMemPoolImportFromShareableHandle, (handle *out, void *os, unsigned type, uint64_t flags), import(out, os, type, flags))

static CUresult export_pointer(struct record *out, devptr at) {
	struct range *r = range_at(at);
	struct pool *p = r && r->kind == K_POOL ? obj_get(r->pool, T_POOL) : NULL;
	if (!out || !p || r->base != at || p->fd < 0 || p->imported)
		return INVALID_VALUE;
	r->p->exported = true;
	record_fill(out, pointer_magic, r->p->fd, r->p->nonce, r->size, devices[r->dev].uuid);
	record_sign(out, p->nonce);
	return OK;
}
API(cuMemPoolExportPointer, (struct record *out, devptr p), export_pointer(out, p))

/* import_pointer maps memory of another process. The memory must be freed here before it is freed there. */
static CUresult import_pointer(devptr *out, handle h, const struct record *rec) {
	struct pool *p = obj_get(h, T_POOL);
	struct ctx *c;
	struct stat st;
	int fd;
	CUresult r = current(&c);
	if (r)
		return r;
	if (!out || !p || !p->imported || !rec || rec->reserved != p->nonce)
		return INVALID_VALUE;
	if ((r = record_open(rec, pointer_magic, &fd)))
		return r;
	struct phys *m = fstat(fd, &st) ? (close(fd), NULL) : phys_adopt(fd, p->dev, (size_t)st.st_size);
	if (!m)
		return MAP_FAILED_;
	m->nonce = rec->nonce;
	struct range *g = range_new(K_POOL, m, rec->size, c, p->dev);
	if (!g) {
		phys_drop(m);
		return OUT_OF_MEMORY;
	}
	g->pool = h;
	*out = g->base;
	return OK;
}
API(cuMemPoolImportPointer, (devptr *out, handle h, const struct record *rec), import_pointer(out, h, rec))

/* Stream-ordered memory. Allocation is immediate; memory is freed when the stream executes the free. */
#include "fake.h"

#include <stdlib.h>

struct pool { int dev; uint64_t threshold, high; unsigned types; bool is_default; };
struct pool_props { int32_t type; uint32_t types; struct location loc; void *win32; size_t max; uint8_t rest[56]; };

static handle pool_new(int dev, unsigned types, bool is_default) {
	struct pool *p = zalloc(sizeof *p);
	*p = (struct pool){.dev = dev, .types = types, .is_default = is_default};
	if (!is_default)
		live_add(LIVE_POOLS, 1);
	return obj_add(p, T_POOL);
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
	if (!p || p->dev != dev)
		return INVALID_VALUE;
	devices[dev].current_pool = h;
	return OK;
}
API(cuDeviceSetMemPool, (int dev, handle h), set_pool(dev, h))

static CUresult create(handle *out, const struct pool_props *p) {
	if (lacks("pool"))
		return NOT_SUPPORTED;
	if (!out || !p || p->type != 1 || p->loc.type != 1 || p->types & ~9u)
		return INVALID_VALUE;
	if (p->loc.id < 0 || p->loc.id >= device_count)
		return INVALID_DEVICE;
	*out = pool_new(p->loc.id, p->types, false);
	return OK;
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
	if (!out || !bytes || !p || p->dev != c->dev)
		return INVALID_VALUE;
	if (s->capture)
		return NOT_SUPPORTED;
	if ((r = alloc_range(K_POOL, bytes, c, out)))
		return r;
	range_at(*out)->pool = h;
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

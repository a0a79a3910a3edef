/* cuMemAlloc and related functions, and pointer attributes. */
#include "fake.h"

static CUresult alloc(devptr *out, size_t bytes, enum kind k) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	if (!out || bytes == 0)
		return INVALID_VALUE;
	if (prohibited())
		return STREAM_CAPTURE_UNSUPPORTED;
	return alloc_range(k, bytes, c, out);
}
API(cuMemAlloc_v2, (devptr *out, size_t bytes), alloc(out, bytes, K_ALLOC))

static CUresult managed(devptr *out, size_t bytes, unsigned flags) {
	if (flags != 1 && flags != 2)
		return INVALID_VALUE;
	return lacks("managed") ? NOT_SUPPORTED : alloc(out, bytes, K_MANAGED);
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
	if (prohibited())
		return STREAM_CAPTURE_UNSUPPORTED;
	struct range *r = range_at(p);
	if (!r || r->base != p || (r->kind != K_ALLOC && r->kind != K_POOL && r->kind != K_MANAGED))
		return INVALID_VALUE;
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

static CUresult pointer_attribute(void *data, int attr, devptr p) {
	struct range *r = range_at(p);
	if (!data)
		return INVALID_VALUE;
	if (!r)
		return INVALID_VALUE;
	switch (attr) {
	case 1: *(handle *)data = r->ctx ? r->ctx->self : 0; return OK;
	case 2: *(unsigned *)data = r->kind == K_HOST || r->on_host ? 1 : 2; return OK;
	case 3: *(devptr *)data = p; return OK;
	case 4: *(uint64_t *)data = p; return r->kind == K_HOST || r->kind == K_MANAGED || r->on_host ? OK : INVALID_VALUE;
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

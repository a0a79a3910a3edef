/* Green contexts: contexts with a part of a device's multiprocessors. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

enum { SM = 1, SMS = 8, STEP = 2 }; /* the device has 8 multiprocessors, which are assigned in pairs */

/* resource is CUdevResource: a type, data of the library, and the description. */
struct resource { int type; unsigned char internal[92]; union { struct { unsigned count, min, alignment, flags; } sm; unsigned char pad[40]; } u; void *next; };
struct desc { handle self; struct resource r; int dev; };
struct green { handle self; struct ctx *ctx; struct resource r; int dev; };

/* The library's data is the set of multiprocessors and the device. */
struct set { uint32_t mask, dev, magic; };
static const uint32_t set_magic = 0x5e750f5d;

static struct set set_of(const struct resource *r) {
	struct set s;
	memcpy(&s, r->internal, sizeof s);
	return s;
}

static struct resource resource_of(uint32_t mask, int dev) {
	struct resource r = {.type = SM, .u.sm = {(unsigned)__builtin_popcount(mask), STEP, STEP, 0}};
	struct set s = {mask, (uint32_t)dev, set_magic};
	memcpy(r.internal, &s, sizeof s);
	return r;
}

static bool valid(const struct resource *r) {
	struct set s = set_of(r);
	return r && r->type == SM && s.magic == set_magic && s.dev < (unsigned)device_count && r->u.sm.count == (unsigned)__builtin_popcount(s.mask);
}

static CUresult device_resource(int dev, struct resource *out, int type) {
	_Static_assert(sizeof(struct resource) == 144, "CUdevResource has 144 bytes");
	if (dev < 0 || dev >= device_count)
		return INVALID_DEVICE;
	if (!out || type != SM)
		return type == SM ? INVALID_VALUE : NOT_SUPPORTED;
	if (lacks("green"))
		return NOT_SUPPORTED;
	*out = resource_of((1u << SMS) - 1, dev);
	return OK;
}
API(cuDeviceGetDevResource, (int dev, struct resource *out, int type), device_resource(dev, out, type))

static CUresult split(struct resource *out, unsigned *n, const struct resource *in, struct resource *rest, unsigned flags, unsigned min) {
	if (!n || !in || !valid(in) || flags & ~3u)
		return INVALID_VALUE;
	if (!min)
		min = 1;
	unsigned size = (unsigned)round_up(min, STEP), possible = in->u.sm.count / size;
	if (!out) {
		*n = possible;
		return possible ? OK : INVALID_VALUE;
	}
	struct set s = set_of(in);
	if (*n > possible)
		*n = possible;
	if (!*n)
		return INVALID_VALUE;
	uint32_t left = s.mask;
	for (unsigned i = 0; i < *n; i++) {
		uint32_t mask = 0;
		for (unsigned k = 0; k < size; k++) {
			uint32_t bit = left & -left;
			mask |= bit;
			left &= ~bit;
		}
		out[i] = resource_of(mask, (int)s.dev);
	}
	if (rest)
		*rest = left ? resource_of(left, (int)s.dev) : (struct resource){0};
	return OK;
}
API(cuDevSmResourceSplitByCount, (struct resource *out, unsigned *n, const struct resource *in, struct resource *rest, unsigned flags, unsigned min),
	split(out, n, in, rest, flags, min))

static CUresult describe(handle *out, const struct resource *r, unsigned n) {
	if (!out || !r || n != 1 || !valid(r) || !r->u.sm.count)
		return INVALID_VALUE;
	struct desc *d = zalloc(sizeof *d);
	*d = (struct desc){.r = *r, .dev = (int)set_of(r).dev};
	*out = d->self = obj_add(d, T_DESC);
	return OK;
}
API(cuDevResourceGenerateDesc, (handle *out, const struct resource *in, unsigned n), describe(out, in, n))

/* A green context needs the flag for a default stream, and the primary context of its device. */
static CUresult create(handle *out, handle dh, int dev, unsigned flags) {
	struct desc *d = obj_get(dh, T_DESC);
	if (dev < 0 || dev >= device_count)
		return INVALID_DEVICE;
	if (!out || !d || d->dev != dev || flags != 1)
		return INVALID_VALUE;
	if (!devices[dev].primary)
		return INVALID_CONTEXT;
	struct green *g = zalloc(sizeof *g);
	*g = (struct green){.ctx = ctx_new(dev, 0, true), .r = d->r, .dev = dev};
	g->ctx->green = g;
	*out = g->self = obj_add(g, T_GREEN);
	return OK;
}
API(cuGreenCtxCreate, (handle *out, handle d, int dev, unsigned flags), create(out, d, dev, flags))

static CUresult destroy(handle h) {
	struct green *g = obj_get(h, T_GREEN);
	if (!g)
		return INVALID_CONTEXT;
	ctx_end(g->ctx);
	obj_del(h);
	free(g);
	return OK;
}
API_RELEASE(cuGreenCtxDestroy, (handle h), destroy(h))

static CUresult context(handle *out, handle h) {
	struct green *g = obj_get(h, T_GREEN);
	if (!g)
		return INVALID_CONTEXT;
	return out ? (*out = g->ctx->self, OK) : INVALID_VALUE;
}
API(cuCtxFromGreenCtx, (handle *out, handle h), context(out, h))

static CUresult green_resource(handle h, struct resource *out, int type) {
	struct green *g = obj_get(h, T_GREEN);
	if (!g)
		return INVALID_CONTEXT;
	return out && type == SM ? (*out = g->r, OK) : INVALID_VALUE;
}
API(cuGreenCtxGetDevResource, (handle h, struct resource *out, int type), green_resource(h, out, type))

static CUresult ctx_resource(handle h, struct resource *out, int type) {
	struct ctx *c = h ? obj_get(h, T_CTX) : current_or_null();
	if (!c)
		return INVALID_CONTEXT;
	if (!out || type != SM)
		return INVALID_VALUE;
	if (c->green)
		return *out = c->green->r, OK;
	return device_resource(c->dev, out, type);
}
API(cuCtxGetDevResource, (handle h, struct resource *out, int type), ctx_resource(h, out, type))

static CUresult stream_create(handle *out, handle h, unsigned flags, int priority) {
	struct green *g = obj_get(h, T_GREEN);
	if (!g)
		return INVALID_CONTEXT;
	if (!out || flags != 1) /* only non-blocking streams */
		return INVALID_VALUE;
	*out = stream_new(g->ctx, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority, false)->self;
	return OK;
}
API(cuGreenCtxStreamCreate, (handle *out, handle h, unsigned flags, int priority), stream_create(out, h, flags, priority))

static CUresult stream_green(handle sh, handle *out) {
	struct stream *s;
	CUresult r = stream_of(sh, &s);
	if (r)
		return r;
	return out ? (*out = s->ctx->green ? s->ctx->green->self : 0, OK) : INVALID_VALUE;
}
API(cuStreamGetGreenCtx, (handle s, handle *out), stream_green(s, out))
